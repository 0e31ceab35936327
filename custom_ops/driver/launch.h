// A kernel launch as data: made by the geometry of a kernel (operators/<name>/geometry.h), executed by a driver, compared by tests.
#pragma once

#include <array>
#include <cstdint>
#include <cstring>
#include <string>
#include <type_traits>

namespace sdort {

enum class Dtype { kFloat32, kFloat16 };

constexpr const char* suffix(Dtype dtype) { return dtype == Dtype::kFloat16 ? "f16" : "f32"; }
constexpr int size_of(Dtype dtype) { return dtype == Dtype::kFloat16 ? 2 : 4; }

// What a geometry may ask of the device that it is made for.
struct Device {
    std::string architecture;  // "gfx1100", "sm_90"
    int compute_units = 0;     // as the driver counts them: work-group processors on RDNA, multiprocessors on NVIDIA
    int wave = 32;
    bool cooperative = false;  // whether the driver can launch a grid so that all of its blocks are resident together
    bool wgmma = false;        // whether code for sm_90a is loaded, and the driver gives a block the shared memory it wants
};

struct Launch {
    std::string kernel;
    uint32_t grid[2] = {1, 1};
    uint32_t threads = 0;
    uint32_t shared_bytes = 0;  // of shared memory beside what the kernel itself declares; NVIDIA alone
    // Blocks wait for each other: the driver must have all of them on the device together, or refuse.
    bool cooperative = false;
    alignas(16) std::array<unsigned char, 512> args{};
    size_t args_size = 0;
};

template <class Args>
Launch make_launch(std::string kernel, uint32_t grid_x, uint32_t grid_y, uint32_t threads, const Args& args,
                   uint32_t shared_bytes = 0) {
    static_assert(std::is_trivially_copyable_v<Args> && sizeof(Args) <= sizeof(Launch::args));
    Launch launch;
    launch.kernel = std::move(kernel);
    launch.grid[0] = grid_x;
    launch.grid[1] = grid_y;
    launch.threads = threads;
    launch.shared_bytes = shared_bytes;
    launch.args_size = sizeof args;
    std::memcpy(launch.args.data(), &args, sizeof args);
    return launch;
}

constexpr int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

}  // namespace sdort
