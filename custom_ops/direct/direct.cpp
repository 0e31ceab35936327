// The C interface of the kernels, for programs with tensors of their own (sdort/operator_library/pointer_kernels.py calls it from Python).
//
// A kernel is named by its folder of operators/, a problem is its struct Problem, byte by byte. Nothing here allocates
// device memory, copies or waits: the launches are queued when a call returns.
#include "direct.h"

#include <algorithm>
#include <atomic>
#include <map>
#include <thread>
#include <vector>

#include "driver/error.h"
#include "driver/shared_library.h"

namespace sdort {
namespace {

auto& kernels() {
    static std::map<std::string, Direct, std::less<>> all;
    return all;
}

thread_local std::string last_error;

// On the calling thread and others, made for the call: no pool that a forked process or the end of one has to think of.
void on_threads(size_t threads, size_t count, const std::function<void(size_t)>& body) {
    std::atomic<size_t> next{0};
    const auto work = [&] {
        for (size_t i; (i = next++) < count;) body(i);
    };
    std::vector<std::jthread> others;
    for (size_t i = 1; i < std::min(threads, count); ++i) others.emplace_back(work);
    work();
}

}  // namespace

const Direct& find_direct(const char* name, size_t problem_bytes) {
    const auto found = kernels().find(std::string_view(name));
    if (found == kernels().end()) throw Error(std::string("no kernel is named ") + name);
    if (found->second.problem_bytes != problem_bytes)
        throw Error(std::string("a problem of ") + name + " has " + std::to_string(found->second.problem_bytes) +
                    " bytes, not " + std::to_string(problem_bytes));
    return found->second;
}

int64_t guarded(const std::function<int64_t()>& act) noexcept {
    try {
        return act();
    } catch (const std::exception& error) {
        last_error = error.what();
        return -1;
    }
}

void set_last_error(const std::string& text) { last_error = text; }

Gpu& gpu_of(Place place, int device) {
    if (place != kOnHip && place != kOnCuda) throw Error("place " + std::to_string(place) + " is no kind of GPU");
    return Gpu::get(place == kOnHip ? Vendor::kHip : Vendor::kCuda, device);
}

bool add_direct(const std::string& name, const Direct& direct) {
    kernels().emplace(name, direct);
    return true;
}

}  // namespace sdort

using namespace sdort;

// Why the last call on this thread returned -1.
SDORT_EXPORT const char* sdort_kernel_error() { return last_error.c_str(); }

// 0 if the kernels can be launched on that GPU; -1 where there is no driver, no device or no machine code for it.
SDORT_EXPORT int64_t sdort_kernel_device(int place, int device) {
    return guarded([&]() -> int64_t { return gpu_of(static_cast<Place>(place), device), 0; });
}

// How a tuning table's line of a problem begins, and the variants that compute it on a GPU, the library's own choice first, a
// line each. Null is an error; the text is this thread's until it asks again.
SDORT_EXPORT const char* sdort_kernel_variants(const char* name, const void* problem, size_t problem_bytes, int half, int place,
                                               int device) {
    thread_local std::string text;
    const int64_t code = guarded([&]() -> int64_t {
        const Direct& direct = find_direct(name, problem_bytes);
        text = direct.variants(problem, half ? Dtype::kFloat16 : Dtype::kFloat32, gpu_of(static_cast<Place>(place), device).device());
        return 0;
    });
    return code == 0 ? text.c_str() : nullptr;
}

// Computes a problem: on `threads` threads of the CPU (place 0), or queued on a stream of a GPU of HIP (1) or CUDA (2). Half:
// 0 for float32, 1 for float16. Returns 0; -1 for an error; or the bytes that the problem's workspace has to have, where that
// is more than `workspace_bytes`: nothing was queued then.
SDORT_EXPORT int64_t sdort_kernel_run(const char* name, const void* problem, size_t problem_bytes, int half, int place,
                                      int device, void* stream, size_t threads, size_t workspace_bytes) {
    return guarded([&]() -> int64_t {
        const Direct& direct = find_direct(name, problem_bytes);
        const Dtype dtype = half ? Dtype::kFloat16 : Dtype::kFloat32;
        if (place == kOnCpu) {
            direct.on_cpu(problem, dtype, [&](size_t count, const auto& body) { on_threads(threads, count, body); });
            return 0;
        }
        Gpu& gpu = gpu_of(static_cast<Place>(place), device);
        gpu.make_current();
        return static_cast<int64_t>(direct.on_gpu(problem, dtype, gpu, stream, workspace_bytes));
    });
}
