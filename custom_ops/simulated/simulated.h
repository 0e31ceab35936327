// For tests: an operator's geometry and its kernels' bodies together, as the library would launch them, without a GPU.
//
// The build makes a source of SDORT_SIMULATED_OPERATOR(name) for every folder of operators/ that has a kernel.h.
#pragma once

#include <string>
#include <vector>

#include "driver/launch.h"
#include "rows/geometry.h"

namespace sdort {

struct Simulated {
    size_t problem_bytes;
    std::vector<std::string> (*variants)(const void* problem, Dtype dtype, const Device& device);
    std::vector<Launch> (*launches)(const void* problem, Dtype dtype, const Device& device, const std::string& variant);
};

// Adds an operator, whose problems tests pass as bytes. Returns true.
bool add_simulated(const std::string& name, const Simulated& simulated);

template <class Problem>
Simulated simulated() {
    return {sizeof(Problem),
            [](const void* p, Dtype dtype, const Device& device) {
                return variants(*static_cast<const Problem*>(p), dtype, device);
            },
            [](const void* p, Dtype dtype, const Device& device, const std::string& variant) {
                return launches(*static_cast<const Problem*>(p), dtype, device, variant);
            }};
}

}  // namespace sdort

#define SDORT_SIMULATED_OPERATOR(name) \
    static const bool name##_simulated = ::sdort::add_simulated(#name, ::sdort::simulated<::sdort::name::Problem>());
