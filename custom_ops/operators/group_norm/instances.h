// The instances of GroupNorm's fast kernel, and how many blocks of them a device holds.
#pragma once

#include <algorithm>
#include <array>
#include <string>

#include "driver/launch.h"
#include "group_norm.h"

namespace sdort::group_norm {

// An instance of the fast kernel (kernel.h): rows of a lane in registers and in shared memory, and what the
// code was compiled for: so many blocks on a compute unit, with so many bytes of shared memory each.
struct Instance {
    int threads, rows, kept, blocks, shared_bytes;
};
// Where a block has a slab alone, it keeps rows in registers only, and has four bytes of shared memory less.
constexpr std::array<Instance, 6> kInstances{{{256, 4, 0, 2, 12036},
                                              {256, 8, 0, 2, 12036},
                                              {512, 4, 0, 1, 21252},
                                              {512, 8, 0, 1, 21252},
                                              {512, 16, 0, 1, 21252},
                                              {128, 12, 20, 4, 48388}}};

// Of the two launches; the first one's shared memory, as it has more.
constexpr Instance kTwoLaunches{kTwoThreads, kTwoRows, 0, kTwoBlocks, 9216};

// The fast kernel's instance, vectors of a tile's row, and blocks of a slab: one, or several that exchange statistics in one
// cooperative launch, or leave them from one launch to the next.
struct Plan {
    Instance instance;
    int64_t lanes, splits;
    bool twice = false;
};

inline std::string name_of(const Plan& plan) {
    const Instance& i = plan.instance;
    if (plan.twice) return "twice/lanes=" + std::to_string(plan.lanes) + "/splits=" + std::to_string(plan.splits);
    return std::to_string(i.threads) + "-" + std::to_string(i.rows) + "-" + std::to_string(i.kept) + "/lanes=" +
           std::to_string(plan.lanes) + "/splits=" + std::to_string(plan.splits);
}

inline std::string kernel_of(const Instance& i, Dtype dtype, bool alone) {
    const std::string rows = std::to_string(i.threads) + "_" + std::to_string(i.rows);
    return std::string("group_norm_") + suffix(dtype) +
           (alone ? "_alone_" + rows : "_together_" + rows + "_" + std::to_string(i.kept));
}

// Shared memory of a compute unit. Vendors' architecture manuals; where it is not known, the least of all.
inline int shared_memory(const Device& device) {
    const std::string& a = device.architecture;
    if (a == "sm_80" || a == "sm_87") return 164 << 10;
    if (a == "sm_90" || a == "sm_100" || a == "sm_103") return 228 << 10;
    if (a.rfind("sm_", 0) == 0) return 100 << 10;
    if (a == "gfx950") return 160 << 10;
    return a.rfind("gfx9", 0) == 0 ? 64 << 10 : 128 << 10;
}

// Blocks that are on the device at a time, whatever else each compute unit could hold. NVIDIA takes 1 KiB more a block.
inline int64_t resident(const Instance& i, const Device& device) {
    return static_cast<int64_t>(device.compute_units) *
           std::clamp(shared_memory(device) / (i.shared_bytes + 1024), 1, i.blocks);
}

}  // namespace sdort::group_norm
