// Kernels without ONNX Runtime: a problem as it lies in memory, with raw pointers, on threads or on a stream of the caller's.
//
// An operator's file says how its problem is computed; callers reach it by name through the C interface (direct.cpp).
#pragma once

#include <functional>
#include <string>

#include "driver/gpu.h"
#include "driver/variants.h"
#include "rows/geometry.h"

namespace sdort {

// body(i) for i in [0, count), on several threads; `body` must not throw.
using ParallelFor = std::function<void(size_t count, const std::function<void(size_t)>& body)>;

// A problem whose launches follow from it and the device alone. What is found beside its type, in its namespace: the geometry
// (rows/geometry.h: key, variants, launches).
template <class Problem>
void run_problem(Gpu& gpu, void* stream, const Problem& problem, Dtype dtype) {
    const Device& device = gpu.device();
    run_variant(gpu, stream, key(problem, dtype), variants(problem, dtype, device),
                [&](const std::string& variant) { return launches(problem, dtype, device, variant); });
}

struct Direct {
    size_t problem_bytes;
    std::function<void(const void* problem, Dtype dtype, const ParallelFor& parallel_for)> on_cpu;
    // Queues the launches and returns 0; or queues nothing and returns how many bytes of workspace they need, where that is
    // more than there are.
    std::function<size_t(const void* problem, Dtype dtype, Gpu& gpu, void* stream, size_t workspace_bytes)> on_gpu;
    // How a tuning table's line of the problem begins, architecture and key, and the variants on the device, a line each.
    std::function<std::string(const void* problem, Dtype dtype, const Device& device)> variants;
};

// The first of a name stays. Returns true.
bool add_direct(const std::string& name, const Direct& direct);

// Of a Problem that is_empty knows: there is nothing to do where it says so.
template <class Problem>
bool add_direct(const std::string& name, void (*on_cpu)(const Problem&, Dtype, const ParallelFor&),
                size_t (*on_gpu)(const Problem&, Dtype, Gpu&, void* stream, size_t workspace_bytes)) {
    return add_direct(name, Direct{sizeof(Problem),
                                   [on_cpu](const void* bytes, Dtype dtype, const ParallelFor& parallel_for) {
                                       const auto& problem = *static_cast<const Problem*>(bytes);
                                       if (!is_empty(problem)) on_cpu(problem, dtype, parallel_for);
                                   },
                                   [on_gpu](const void* bytes, Dtype dtype, Gpu& gpu, void* stream, size_t room) {
                                       const auto& problem = *static_cast<const Problem*>(bytes);
                                       return is_empty(problem) ? size_t{0} : on_gpu(problem, dtype, gpu, stream, room);
                                   },
                                   [](const void* bytes, Dtype dtype, const Device& device) {
                                       const auto& problem = *static_cast<const Problem*>(bytes);
                                       std::string text = device.architecture + '\t' + key(problem, dtype);
                                       for (const std::string& variant : variants(problem, dtype, device)) text += "\n" + variant;
                                       return text;
                                   }});
}

// Where a problem's memory is.
enum Place : int { kOnCpu, kOnHip, kOnCuda };

// Both throw Error, in words, where there is none.
const Direct& find_direct(const char* name, size_t problem_bytes);
Gpu& gpu_of(Place place, int device);

// What `act` returns; -1 where it throws, whose reason is then in sdort_kernel_error().
int64_t guarded(const std::function<int64_t()>& act) noexcept;
void set_last_error(const std::string& text);

}  // namespace sdort
