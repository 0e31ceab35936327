// Pools of memory that ONNX Runtime's sessions allocate from, in the place of its own arenas (sdort/runtime/memory_pool.py opens
// them).
//
// A pool is one range of addresses that grows at its end. An arena of ONNX Runtime is one session's, gets a region of the driver
// for every size that it has no room for, and can never join two of them.
//
// ONNX Runtime takes one allocator for all sessions that ask for such a one (RegisterAllocator). Which pool it allocates from, the
// thread says: a session is opened and run by the thread that calls it. What is freed is found by its address.
#include <algorithm>
#include <map>
#include <memory>
#include <mutex>
#include <new>
#include <optional>
#include <string>
#include <utility>

#include "blocks.h"
#include "driver/error.h"
#include "driver/shared_library.h"
#include "reserved.h"
#include "runtime/operator.h"

namespace sdort {
namespace {

struct Pool {
    Pool(Place place, int device) : memory(Reserved::make(place, device)) {}

    // Null where there is no memory left.
    void* allocate(size_t bytes) {
        std::optional<size_t> offset = blocks.take(bytes);
        if (!offset && grow(blocks.missing(bytes))) offset = blocks.take(bytes);
        if (!offset) return nullptr;
        most = std::max(most, blocks.taken());
        return memory->begin() + *offset;
    }

    bool grow(size_t bytes) {
        const size_t piece = memory->granularity();
        const size_t whole = (bytes + piece - 1) / piece * piece;
        if (!memory->extend(whole)) return false;
        blocks.grow(whole);
        return true;
    }

    std::unique_ptr<Reserved> memory;
    Blocks blocks;
    size_t most = 0;
    bool open = true;  // or it goes with its last block
};

// All of the process. What sessions have of them may be freed after this library's statics are gone, so they never are.
struct Pools {
    std::mutex mutex;
    std::map<int64_t, std::unique_ptr<Pool>> by_number;
    int64_t last = 0;

    int64_t open(Place place, int device) {
        auto pool = std::make_unique<Pool>(place, device);
        const std::lock_guard lock(mutex);
        by_number.emplace(++last, std::move(pool));
        return last;
    }

    Pool& at(int64_t number) {
        const auto found = by_number.find(number);
        if (found == by_number.end()) throw Error("there is no memory pool " + std::to_string(number));
        return *found->second;
    }

    void* allocate(int64_t number, size_t bytes) {
        const std::lock_guard lock(mutex);
        const auto found = by_number.find(number);
        return found == by_number.end() ? nullptr : found->second->allocate(bytes);
    }

    void release(char* address) {
        const std::lock_guard lock(mutex);
        for (auto entry = by_number.begin(); entry != by_number.end(); ++entry) {
            Pool& pool = *entry->second;
            if (address < pool.memory->begin() || address >= pool.memory->begin() + pool.blocks.size()) continue;
            pool.blocks.give(static_cast<size_t>(address - pool.memory->begin()));
            if (!pool.open && pool.blocks.empty()) by_number.erase(entry);
            return;
        }
    }

    void close(int64_t number) {
        const std::lock_guard lock(mutex);
        Pool& pool = at(number);
        pool.open = false;
        if (pool.blocks.empty()) by_number.erase(number);
    }
};

Pools& pools() {
    static auto& all = *new Pools;
    return all;
}

thread_local int64_t current = 0;  // the number of the pool that this thread's sessions allocate from

const char* memory_name(Place place) { return place == kOnCpu ? "Cpu" : place == kOnHip ? "Hip" : "Cuda"; }

// Throws std::bad_alloc through ONNX Runtime, which goes on with a null pointer otherwise: as its own C++ runtime does, which is
// not the one that is linked into this library.
[[noreturn]] void throw_shortage() {
    void* const runtime = loaded_library("libstdc++.so.6");
    const auto find = [&](const char* name) { return runtime ? symbol_of(runtime, name) : nullptr; };
    const auto allocate = reinterpret_cast<void* (*)(size_t)>(find("__cxa_allocate_exception"));
    const auto raise_it = reinterpret_cast<void (*)(void*, void*, void (*)(void*))>(find("__cxa_throw"));
    const auto table = static_cast<void**>(find("_ZTVSt9bad_alloc"));
    const auto destroy = reinterpret_cast<void (*)(void*)>(find("_ZNSt9bad_allocD1Ev"));
    void* const type = find("_ZTISt9bad_alloc");
    if (allocate && raise_it && table && destroy && type) {
        void* const error = allocate(sizeof(std::bad_alloc));
        *static_cast<void**>(error) = table + 2;  // behind the offset and the type (Itanium C++ ABI)
        raise_it(error, type, destroy);
    }
    throw std::bad_alloc();
}

// What ONNX Runtime has for a device.
struct Allocator : OrtAllocator {
    Allocator(Place place, int device) : OrtAllocator{}, others(pools().open(place, device)) {
        raise(ort->CreateMemoryInfo(memory_name(place), OrtDeviceAllocator, device, OrtMemTypeDefault, &info));
        version = ORT_API_VERSION;
        Alloc = Reserve = [](OrtAllocator* self, size_t bytes) {
            void* const block = pools().allocate(current ? current : static_cast<Allocator*>(self)->others, bytes);
            if (!block) throw_shortage();
            return block;
        };
        Free = [](OrtAllocator*, void* address) {
            if (address) pools().release(static_cast<char*>(address));
        };
        Info = [](const OrtAllocator* self) -> const OrtMemoryInfo* { return static_cast<const Allocator*>(self)->info; };
    }

    int64_t others;  // the pool of threads that say nothing
    OrtMemoryInfo* info = nullptr;
};

void install(Place place, int device) {
    static std::mutex mutex;
    static auto& installed = *new std::map<std::pair<Place, int>, std::unique_ptr<Allocator>>;
    static OrtEnv* environment = nullptr;
    const std::lock_guard lock(mutex);
    if (installed.count({place, device})) return;
    if (!ort) throw Error("no session of ONNX Runtime has registered this library yet");
    if (!environment) raise(ort->CreateEnv(ORT_LOGGING_LEVEL_FATAL, "sdort", &environment));  // the process's, which is there
    auto allocator = std::make_unique<Allocator>(place, device);
    raise(ort->RegisterAllocator(environment, allocator.get()));
    installed.emplace(std::pair(place, device), std::move(allocator));
}

}  // namespace
}  // namespace sdort

using namespace sdort;

// Opens a pool of the host's memory (place 0) or of a GPU's of HIP (1) or CUDA (2), and lets ONNX Runtime's sessions that use the
// environment's allocators have such memory of pools from now on. Returns its number, above 0; -1 for an error
// (sdort_kernel_error).
SDORT_EXPORT int64_t sdort_pool_open(int place, int device) {
    return guarded([&]() -> int64_t {
        const auto where = static_cast<Place>(place);
        install(where, device);
        return pools().open(where, device);
    });
}

// Its memory goes back to the device as soon as no session has a block of it any more.
SDORT_EXPORT int64_t sdort_pool_close(int64_t pool) {
    return guarded([&]() -> int64_t { return pools().close(pool), 0; });
}

// What this thread's sessions allocate from now on; 0 for what is nobody's own. Returns what it was.
SDORT_EXPORT int64_t sdort_pool_use(int64_t pool) { return std::exchange(current, pool); }

// Bytes that a pool has of the device, those that are taken, and the most that were; and a number that stands for which are taken.
SDORT_EXPORT int64_t sdort_pool_sizes(int64_t pool, uint64_t sizes[4]) {
    return guarded([&]() -> int64_t {
        const std::lock_guard lock(pools().mutex);
        const Pool& found = pools().at(pool);
        sizes[0] = found.blocks.size();
        sizes[1] = found.blocks.taken();
        sizes[2] = found.most;
        sizes[3] = found.blocks.state();
        return 0;
    });
}

// A block of a pool, and back, as sessions have them; null where there is no memory left.
SDORT_EXPORT void* sdort_pool_allocate(int64_t pool, size_t bytes) { return pools().allocate(pool, bytes); }
SDORT_EXPORT void sdort_pool_release(void* address) { pools().release(static_cast<char*>(address)); }
