#include "gpu.h"

#include <algorithm>
#include <cstdlib>
#include <map>
#include <mutex>

#include "error.h"
#include "shared_library.h"

namespace sdort {
namespace {

// The few driver functions that we need. HIP's module interface has CUDA's signatures, and both number success as 0.
struct Driver {
    Vendor vendor;
    int (*device_count)(int*);
    int (*current_device)(int*);
    int (*device_attribute)(int*, int attribute, int device);
    int (*load)(void** module, const void* image);
    int (*function)(void** function, void* module, const char* name);
    int (*launch)(void* function, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned lds, void* stream,
                  void** params, void** extra);
    int (*launch_together)(void* function, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned lds,
                           void* stream, void** params);                    // CUDA, or null
    int (*blocks_per_unit)(int*, void* function, int threads, size_t lds);  // CUDA, or null
    int (*set_attribute)(void* function, int attribute, int value);         // CUDA, or null
    int (*error_name)(int, const char**);             // CUDA
    const char* (*hip_error_name)(int);               // HIP
    int (*hip_properties)(void* properties, int device);
    int (*allocate)(void**, size_t);
    int (*clear)(void*, int, size_t);                 // HIP
    int (*cuda_clear)(void*, unsigned char, size_t);  // CUDA
    int (*synchronize)();
    int (*capture_status)(void* stream, int*);  // or null
    int (*make_event)(void**, unsigned flags);
    int (*record_event)(void* event, void* stream);
    int (*wait_event)(void* event);
    int (*elapsed)(float* milliseconds, void* start, void* end);
    int (*destroy_event)(void* event);
    int (*set_device)(int);                           // HIP
    int (*retain_context)(void**, int);               // CUDA
    int (*set_context)(void*);                        // CUDA
};

constexpr int kHipMultiprocessorCount = 63;
constexpr int kHipWarpSize = 87;
constexpr int kCudaMultiprocessorCount = 16;
constexpr int kCudaMajor = 75;
constexpr int kCudaMinor = 76;
constexpr int kCudaCooperativeLaunch = 95;
constexpr int kCudaMaxDynamicShared = 8;  // of a function

}  // namespace

void* driver_library(Vendor vendor) {
#ifdef _WIN32
    static const char* const hip[] = {"amdhip64_7.dll", "amdhip64_6.dll", nullptr};
    static const char* const cuda[] = {"nvcuda.dll", nullptr};
#else
    static const char* const hip[] = {"libamdhip64.so.7", "libamdhip64.so.6", "libamdhip64.so.5", "libamdhip64.so", nullptr};
    static const char* const cuda[] = {"libcuda.so.1", nullptr};
#endif
    const char* const* names = vendor == Vendor::kHip ? hip : cuda;
    // The one that is already loaded first: a second runtime in one process would have its own streams and memory.
    for (void* (*const find)(const char*) : {loaded_library, load_library})
        for (const char* const* name = names; *name; ++name)
            if (void* library = find(*name)) return library;
    return nullptr;
}

namespace {

template <class Function>
bool find(void* library, const char* name, Function& function) {
    function = reinterpret_cast<Function>(symbol_of(library, name));
    return function != nullptr;
}

std::unique_ptr<Driver> make_driver(Vendor vendor) {
    void* library = driver_library(vendor);
    if (!library) return nullptr;
    auto driver = std::make_unique<Driver>();
    *driver = {};
    driver->vendor = vendor;
    bool complete;
    if (vendor == Vendor::kHip) {
        complete = find(library, "hipGetDeviceCount", driver->device_count) &&
                   find(library, "hipGetDevice", driver->current_device) &&
                   find(library, "hipDeviceGetAttribute", driver->device_attribute) &&
                   find(library, "hipModuleLoadData", driver->load) &&
                   find(library, "hipModuleGetFunction", driver->function) &&
                   find(library, "hipModuleLaunchKernel", driver->launch) &&
                   find(library, "hipGetErrorName", driver->hip_error_name) &&
                   find(library, "hipMalloc", driver->allocate) && find(library, "hipMemset", driver->clear) &&
                   find(library, "hipSetDevice", driver->set_device) &&
                   find(library, "hipDeviceSynchronize", driver->synchronize) &&
                   find(library, "hipEventCreateWithFlags", driver->make_event) &&
                   find(library, "hipEventRecord", driver->record_event) &&
                   find(library, "hipEventSynchronize", driver->wait_event) &&
                   find(library, "hipEventElapsedTime", driver->elapsed) &&
                   find(library, "hipEventDestroy", driver->destroy_event) &&
                   (find(library, "hipGetDevicePropertiesR0600", driver->hip_properties) ||
                    find(library, "hipGetDeviceProperties", driver->hip_properties));
        find(library, "hipStreamIsCapturing", driver->capture_status);
    } else {
        int (*initialise)(unsigned) = nullptr;
        complete = find(library, "cuInit", initialise) && initialise(0) == 0 &&
                   find(library, "cuDeviceGetCount", driver->device_count) &&
                   find(library, "cuCtxGetDevice", driver->current_device) &&
                   find(library, "cuDeviceGetAttribute", driver->device_attribute) &&
                   find(library, "cuModuleLoadData", driver->load) &&
                   find(library, "cuModuleGetFunction", driver->function) &&
                   find(library, "cuLaunchKernel", driver->launch) &&
                   find(library, "cuGetErrorName", driver->error_name) &&
                   find(library, "cuMemAlloc_v2", driver->allocate) &&
                   find(library, "cuMemsetD8_v2", driver->cuda_clear) &&
                   find(library, "cuCtxSynchronize", driver->synchronize) &&
                   find(library, "cuEventCreate", driver->make_event) &&
                   find(library, "cuEventRecord", driver->record_event) &&
                   find(library, "cuEventSynchronize", driver->wait_event) &&
                   find(library, "cuEventElapsedTime", driver->elapsed) &&
                   find(library, "cuEventDestroy_v2", driver->destroy_event) &&
                   find(library, "cuDevicePrimaryCtxRetain", driver->retain_context) &&
                   find(library, "cuCtxSetCurrent", driver->set_context);
        find(library, "cuLaunchCooperativeKernel", driver->launch_together);  // not in every translation layer
        find(library, "cuFuncSetAttribute", driver->set_attribute);
        find(library, "cuStreamIsCapturing", driver->capture_status);
        find(library, "cuOccupancyMaxActiveBlocksPerMultiprocessor", driver->blocks_per_unit);
    }
    return complete ? std::move(driver) : nullptr;
}

// Looked for again until found: the provider that brings the driver may be loaded after this library.
Driver* driver_of(Vendor vendor) {
    static std::mutex mutex;
    static std::map<Vendor, std::unique_ptr<Driver>> drivers;
    const std::lock_guard lock(mutex);
    auto& driver = drivers[vendor];
    if (!driver) driver = make_driver(vendor);
    return driver.get();
}

std::string text(const Driver& driver, int code) {
    const char* name = nullptr;
    if (driver.hip_error_name) {
        name = driver.hip_error_name(code);
    } else {
        driver.error_name(code, &name);
    }
    return std::string(name ? name : "unknown error") + " (" + std::to_string(code) + ")";
}

void check(const Driver& driver, int code, const std::string& what) {
    if (code != 0) throw Error(what + " failed: " + text(driver, code));
}

// hipDeviceProp_t has changed its layout between releases, its gcnArchName has not: "gfx1100" or "gfx90a:sramecc+:xnack-".
std::string hip_architecture(const Driver& driver, int device) {
    std::vector<char> properties(16384);
    check(driver, driver.hip_properties(properties.data(), device), "hipGetDeviceProperties");
    static const char prefix[] = {'g', 'f', 'x'};
    // The marketing name comes first and holds no "gfx" but on devices without one, where it is the architecture too.
    const auto found = std::search(properties.begin(), properties.end() - 64, std::begin(prefix), std::end(prefix));
    const std::string name(&*found);
    return name.substr(0, name.find(':'));
}

Device describe(const Driver& driver, int device) {
    Device result;
    int value = 0;
    const auto attribute = [&](int which) {
        check(driver, driver.device_attribute(&value, which, device), "reading an attribute of the device");
        return value;
    };
    if (driver.vendor == Vendor::kHip) {
        result.architecture = hip_architecture(driver, device);
        result.compute_units = attribute(kHipMultiprocessorCount);
        result.wave = attribute(kHipWarpSize);
    } else {
        const int major = attribute(kCudaMajor);
        result.architecture = "sm_" + std::to_string(10 * major + attribute(kCudaMinor));
        result.compute_units = attribute(kCudaMultiprocessorCount);
        result.cooperative = driver.launch_together && driver.blocks_per_unit && attribute(kCudaCooperativeLaunch) != 0;
    }
    return result;
}

// Machine code made for sm_80 runs on 8.x from 8.0 on; PTX for compute_80 is compiled by any later driver.
int cuda_version(const std::string& name) { return std::atoi(name.c_str() + name.find('_') + 1); }

}  // namespace

const CodeObject* find_code_object(Vendor vendor, const std::string& architecture) {
    const CodeObject* best = nullptr;
    for (size_t i = 0; i < kCodeObjectCount; ++i) {
        const CodeObject& object = kCodeObjects[i];
        const std::string name = object.architecture;
        if (object.vendor != std::string(name_of(vendor))) continue;
        if (name == architecture) return &object;
        if (vendor == Vendor::kHip) continue;
        const bool ptx = name.rfind("compute_", 0) == 0;
        const int here = cuda_version(architecture), built = cuda_version(name);
        const bool runs = built <= here && (ptx || built / 10 == here / 10);
        const bool better = !best || (std::string(best->architecture).rfind("compute_", 0) == 0 && !ptx);
        if (runs && better) best = &object;
    }
    return best;
}

std::string embedded_architectures(Vendor vendor) {
    std::string names;
    for (size_t i = 0; i < kCodeObjectCount; ++i) {
        if (kCodeObjects[i].vendor != std::string(name_of(vendor))) continue;
        names += (names.empty() ? "" : ", ") + std::string(kCodeObjects[i].architecture);
    }
    return names.empty() ? "none" : names;
}

std::vector<std::string> visible_architectures(Vendor vendor) {
    std::vector<std::string> names;
    try {
        const Driver* driver = driver_of(vendor);
        int count = 0;
        if (!driver || driver->device_count(&count) != 0) return names;
        for (int i = 0; i < count; ++i) names.push_back(describe(*driver, i).architecture);
    } catch (const Error&) {
        // A device that cannot be described is one that we cannot serve.
    }
    return names;
}

struct Gpu::State {
    Driver* driver;
    int index;
    void* module = nullptr;
    void* context = nullptr;  // CUDA's primary one, once somebody needed it
    std::mutex mutex;
    std::map<std::string, void*> functions;
    std::map<void*, uint32_t> shared_bytes;  // that functions may be launched with, where more than every function has
    std::map<void*, int> blocks_per_unit;  // of kernels that are launched cooperatively
};

Gpu::Gpu(Vendor vendor, int device) : state_(std::make_shared<State>()) {
    Driver* driver = driver_of(vendor);
    if (!driver) throw Error(std::string("no ") + name_of(vendor) + " driver can be loaded here");
    state_->driver = driver;
    state_->index = device;
    device_ = describe(*driver, device);
    const CodeObject* object = find_code_object(vendor, device_.architecture);
    if (!object)
        throw Error("there is no code object for " + device_.architecture + "; this library has " +
                    embedded_architectures(vendor) + " (sdort ops build --arch " + device_.architecture + " adds it)");
    // The code object for sm_90 is compiled for sm_90a (cmake/device_code.cmake).
    device_.wgmma = vendor == Vendor::kCuda && driver->set_attribute && object->architecture == std::string("sm_90");
    make_current();  // the thread that creates kernels may have no context yet
    check(*driver, driver->load(&state_->module, object->begin),
          std::string("loading the code object for ") + object->architecture);
}

Gpu& Gpu::get(Vendor vendor, int device) {
    static std::mutex mutex;
    static std::map<std::pair<Vendor, int>, Gpu> gpus;
    const std::lock_guard lock(mutex);
    const auto key = std::make_pair(vendor, device);
    const auto found = gpus.find(key);
    return found != gpus.end() ? found->second : gpus.emplace(key, Gpu(vendor, device)).first->second;
}

void Gpu::make_current() {
    const Driver& driver = *state_->driver;
    const int index = state_->index;
    if (driver.vendor == Vendor::kHip) return check(driver, driver.set_device(index), "hipSetDevice");
    if (int current = -1; driver.current_device(&current) == 0 && current == index) return;
    const std::lock_guard lock(state_->mutex);
    if (!state_->context) check(driver, driver.retain_context(&state_->context, index), "cuDevicePrimaryCtxRetain");
    check(driver, driver.set_context(state_->context), "cuCtxSetCurrent");
}

void Gpu::prepare(const std::string& kernel) {
    const std::lock_guard lock(state_->mutex);
    void*& function = state_->functions[kernel];
    if (function) return;
    const int code = state_->driver->function(&function, state_->module, kernel.c_str());
    if (code != 0) state_->functions.erase(kernel);
    check(*state_->driver, code, "finding kernel " + kernel + " in the code object for " + device_.architecture);
}

void* Gpu::function_of(const Launch& launch) {
    prepare(launch.kernel);
    const std::lock_guard lock(state_->mutex);
    void* const function = state_->functions.at(launch.kernel);
    if (launch.shared_bytes == 0) return function;
    if (uint32_t& bytes = state_->shared_bytes[function]; bytes < launch.shared_bytes) {
        check(*state_->driver,
              state_->driver->set_attribute(function, kCudaMaxDynamicShared, static_cast<int>(launch.shared_bytes)),
              "asking for " + std::to_string(launch.shared_bytes) + " bytes of shared memory for " + launch.kernel);
        bytes = launch.shared_bytes;
    }
    return function;
}

bool Gpu::fits(const Launch& launch) {
    if (!launch.cooperative) return true;
    if (!device_.cooperative) return false;
    void* const function = function_of(launch);
    const std::lock_guard lock(state_->mutex);
    auto found = state_->blocks_per_unit.find(function);
    if (found == state_->blocks_per_unit.end()) {
        int blocks = 0;
        check(*state_->driver, state_->driver->blocks_per_unit(&blocks, function, launch.threads, 0),
              "asking how many blocks of " + launch.kernel + " are resident");
        found = state_->blocks_per_unit.emplace(function, blocks).first;
    }
    return static_cast<int64_t>(launch.grid[0]) * launch.grid[1] <= static_cast<int64_t>(found->second) * device_.compute_units;
}

void Gpu::launch(void* stream, const Launch& launch) {
    void* const function = function_of(launch);
    // Both drivers number these alike but for the end mark: CU_LAUNCH_PARAM_END is 0, HIP_LAUNCH_PARAM_END is 3.
    size_t size = launch.args_size;
    void* const end = reinterpret_cast<void*>(state_->driver->vendor == Vendor::kHip ? 3 : 0);
    void* extra[] = {reinterpret_cast<void*>(1), const_cast<unsigned char*>(launch.args.data()),
                     reinterpret_cast<void*>(2), &size, end};
    void* params[] = {const_cast<unsigned char*>(launch.args.data())};  // a kernel has one parameter, a struct
    const int code = launch.cooperative
                         ? state_->driver->launch_together(function, launch.grid[0], launch.grid[1], 1, launch.threads, 1, 1,
                                                           launch.shared_bytes, stream, params)
                         : state_->driver->launch(function, launch.grid[0], launch.grid[1], 1, launch.threads, 1, 1,
                                                  launch.shared_bytes, stream, nullptr, extra);
    if (code != 0)
        throw Error("launching " + launch.kernel + " on " + device_.architecture + " with a grid of " +
                    std::to_string(launch.grid[0]) + " x " + std::to_string(launch.grid[1]) + " blocks of " +
                    std::to_string(launch.threads) + " threads failed: " + text(*state_->driver, code));
}

double Gpu::time(void* stream, const std::vector<Launch>& launches) {
    constexpr int kBatches = 7, kRepeats = 10;
    const Driver& driver = *state_->driver;
    void* events[2] = {};
    for (void*& event : events) check(driver, driver.make_event(&event, 0), "creating an event");
    std::vector<float> times;
    for (int batch = 0; batch <= kBatches; ++batch) {
        check(driver, driver.record_event(events[0], stream), "recording an event");
        for (int i = 0; i < kRepeats; ++i)
            for (const Launch& one : launches) launch(stream, one);
        check(driver, driver.record_event(events[1], stream), "recording an event");
        check(driver, driver.wait_event(events[1]), "waiting for " + launches.front().kernel);
        float milliseconds = 0;
        check(driver, driver.elapsed(&milliseconds, events[0], events[1]), "reading an event");
        if (batch > 0) times.push_back(milliseconds * 1000 / kRepeats);  // the first one warms up
    }
    for (void* event : events) check(driver, driver.destroy_event(event), "destroying an event");
    std::nth_element(times.begin(), times.begin() + kBatches / 2, times.end());
    return times[kBatches / 2];
}

bool Gpu::is_capturing(void* stream) {
    int status = 0;
    const auto ask = state_->driver->capture_status;
    if (ask) check(*state_->driver, ask(stream, &status), "asking whether a stream is captured");
    return status != 0;
}

void* Gpu::zeroed(size_t bytes) {
    void* memory = nullptr;
    check(*state_->driver, state_->driver->allocate(&memory, bytes), "allocating " + std::to_string(bytes) + " bytes");
    const int code = state_->driver->clear ? state_->driver->clear(memory, 0, bytes)
                                           : state_->driver->cuda_clear(memory, 0, bytes);
    check(*state_->driver, code, "clearing " + std::to_string(bytes) + " bytes");
    // The clearing runs on the default stream, which ONNX Runtime's streams do not wait for.
    check(*state_->driver, state_->driver->synchronize(), "waiting for the device");
    return memory;
}

}  // namespace sdort
