// For tests: a kernel's geometry and its body together, as the library would launch them, without a GPU.
#pragma once

#include <exception>
#include <string>
#include <vector>

#include "driver/launch.h"

extern "C" int sdort_body_launch(const char* name, const unsigned grid[3], const unsigned block[3], unsigned lds_bytes,
                                 const void* args, size_t args_size);
extern "C" const char* sdort_body_error();

namespace sdort {

inline std::string& simulation_error() {
    static std::string text;
    return text;
}

// Runs what `launches()` returns, in order. 0, or 1 with the reason in simulated_error().
template <class Launches>
int simulate(Launches launches) {
    try {
        for (const Launch& launch : launches()) {
            const unsigned grid[3] = {launch.grid[0], launch.grid[1], 1}, block[3] = {launch.threads, 1, 1};
            if (sdort_body_launch(launch.kernel.c_str(), grid, block, 0, launch.args.data(), launch.args_size)) {
                simulation_error() = sdort_body_error();
                return 1;
            }
        }
        return 0;
    } catch (const std::exception& error) {
        simulation_error() = error.what();
        return 1;
    }
}

}  // namespace sdort
