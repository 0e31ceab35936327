// How GroupNorm is cut into blocks. The reasons are in group_norm.h.
#pragma once

#include <algorithm>
#include <numeric>
#include <vector>

#include "driver/error.h"
#include "instances.h"
#include "problem.h"

namespace sdort::group_norm {

// Vectors of the narrowest tile: whole vectors and whole groups. 0 if the fast kernel cannot take the problem.
inline int64_t unit_lanes(const Problem& p, Dtype dtype) {
    const int64_t vector = 16 / size_of(dtype), size = p.channels / p.groups;
    const int64_t unit = std::lcm(vector, size);
    if (p.channels % vector || p.x_channels % vector || unit > kMostChannels || unit / size > kMostGroups) return 0;
    const int64_t tiles = p.channels / unit;
    if (p.hw >= 1 << 28 || p.hw * p.channels / vector >= INT64_C(1) << 32) return 0;  // Lane's integers
    if (p.images * tiles * tiles >= 1 << 24) return 0;                                      // tile_inverse is exact
    for (int64_t c = 0; c < unit; c += vector)
        if ((c + vector - 1) / size - c / size > 1) return 0;  // a lane knows two groups
    return unit / vector;
}

// Most vectors that any group touches in a tile.
inline int64_t group_lanes(const Problem& p, Dtype dtype, int64_t lanes) {
    const int64_t vector = 16 / size_of(dtype), size = p.channels / p.groups;
    int64_t most = 0;
    for (int64_t c = 0; c < lanes * vector; c += size) most = std::max(most, (c + size - 1) / vector - c / vector + 1);
    return most;
}

// The narrowest tile whose rows are `bytes` long or more, and a multiple of `alignment` where any is.
inline int64_t tile(const Problem& p, Dtype dtype, int64_t bytes, int64_t alignment) {
    const int64_t vector = 16 / size_of(dtype), unit = unit_lanes(p, dtype), size = p.channels / p.groups;
    int64_t best = unit;
    for (int64_t lanes = unit; lanes * vector <= std::min<int64_t>(p.channels, kMostChannels); lanes += unit) {
        if (p.channels % (lanes * vector) || lanes * vector / size > kMostGroups) continue;
        if (best * 16 < bytes) best = lanes;
        if (lanes * 16 >= bytes && lanes * 16 % alignment == 0) return lanes;
    }
    return best;
}

inline int64_t slabs_of(const Problem& p, Dtype dtype, int64_t lanes) {
    return p.images * (p.channels * size_of(dtype) / 16 / lanes);
}

inline int64_t step_rows(const Plan& plan) { return plan.instance.threads / plan.lanes; }

// Rows of a lane.
inline int64_t steps(const Problem& p, const Plan& plan) { return ceil_div(ceil_div(p.hw, plan.splits), step_rows(plan)); }

// GPUs of eight dies whose blocks go round: tiles that share cache lines meet on one die if the number of splits is a
// multiple of eight.
inline int64_t for_dies(int64_t splits, const Device& device) {
    const bool dies = device.architecture == "gfx942" || device.architecture == "gfx950";
    return dies && splits > 8 ? splits / 8 * 8 : splits;
}

// `blocks` for all slabs, of which every one has a step's rows or more, and 4 KiB.
inline int64_t share(const Problem& p, Dtype dtype, const Instance& instance, int64_t lanes, int64_t blocks, int64_t most) {
    const int64_t rows = std::max<int64_t>(instance.threads / lanes, 4096 / (16 * lanes));
    return std::clamp<int64_t>(blocks / slabs_of(p, dtype, lanes), 1, std::max<int64_t>(1, std::min(p.hw / rows, most)));
}

// Blocks that exchange statistics are resident together, and no more a slab than there are compute units.
inline int64_t most_splits(const Problem& p, Dtype dtype, const Device& device, const Instance& instance, int64_t lanes) {
    return share(p, dtype, instance, lanes, resident(instance, device), device.compute_units);
}

// One block a slab, or as many as are resident; of the instances of that width, the one with the fewest registers that
// reads every row once; or else the last.
inline Plan plan_for(const Problem& p, Dtype dtype, const Device& device, int threads, int64_t lanes, bool alone) {
    Plan plan{};
    for (const Instance& instance : kInstances) {
        if (instance.threads != threads) continue;
        plan = {instance, lanes, alone ? 1 : most_splits(p, dtype, device, instance, lanes)};
        if (steps(p, plan) <= instance.rows + instance.kept) break;
    }
    return plan;
}

// Two launches: blocks that need not be resident together, `rounds` times as many as are; where that is but one a slab,
// four, since two launches that fill the device take less time than one whose blocks read their slab twice, one after the
// other (H100, 128 slabs of 320 KiB: 52 µs against 70). A slab that has no more rows than a block reads needs but one launch.
inline Plan twice(const Problem& p, Dtype dtype, const Device& device, int64_t lanes, int rounds) {
    const int64_t places = rounds * resident(kTwoLaunches, device), slabs = slabs_of(p, dtype, lanes);
    const int64_t blocks = places < 2 * slabs ? 4 * slabs : places;
    const int64_t splits = for_dies(share(p, dtype, kTwoLaunches, lanes, blocks, kMostParts), device);
    return splits > 1 ? Plan{kTwoLaunches, lanes, splits, true} : plan_for(p, dtype, device, 512, lanes, true);
}

inline bool reads_once(const Problem& p, const Plan& plan) {
    return steps(p, plan) <= plan.instance.rows + plan.instance.kept;
}

// Every row is read once, slab after slab: as many blocks a slab as keep it, so that as many slabs as possible are on the
// device at a time, and one is read while another waits and is written. No splits where not even one slab fits.
inline Plan once(const Problem& p, Dtype dtype, const Device& device) {
    const Instance& instance = kInstances.back();
    Plan best{instance, tile(p, dtype, 128, 32), 0};
    const int64_t blocks = resident(instance, device);
    for (int64_t cohorts = 1; cohorts <= slabs_of(p, dtype, best.lanes); ++cohorts) {
        const Plan plan{instance, best.lanes, std::min<int64_t>(blocks / cohorts, kMostTeams * kMostTeams)};
        if (plan.splits < 2 || !reads_once(p, plan) || p.hw / plan.splits < step_rows(plan)) break;
        best = plan;
    }
    return best;
}

// What does not fit even so: every resident block's registers and shared memory are needed, by a narrower tile if need be.
inline Plan streaming(const Problem& p, Dtype dtype, const Device& device) {
    const Instance& instance = kInstances.back();
    int64_t lanes = tile(p, dtype, 128, 32);
    if (slabs_of(p, dtype, lanes) * device.compute_units < resident(instance, device)) lanes = tile(p, dtype, 64, 32);
    const Plan plan = plan_for(p, dtype, device, instance.threads, lanes, false);
    return plan.splits > 1 ? plan : plan_for(p, dtype, device, 512, lanes, true);
}

// Slabs are the grid's second dimension, which is that long.
constexpr int64_t kMostSlabs = 65535;

inline Plan shipped(const Problem& p, Dtype dtype, const Device& device) {
    const int64_t narrow = tile(p, dtype, 64, 1), aligned = tile(p, dtype, 128, 32);
    const int64_t slabs = slabs_of(p, dtype, aligned);
    // Below 24 KiB a block is done with a slab before it would know of others.
    constexpr int64_t kAlone = 24 << 10;
    const Plan alone = plan_for(p, dtype, device, p.hw * narrow <= 512 ? 256 : 512, narrow, true);
    // A block reads at most 128 KiB once, in some 5 µs, and writes as much; more blocks would win less of that than a second
    // launch and the rows read again take, however few slabs there are (H100, 32 of 80 KiB: 9.3 µs against 12.0).
    const bool enough = p.hw * narrow * 16 <= kAlone || slabs >= device.compute_units || !device.cooperative;
    if ((enough && reads_once(p, alone)) || slabs > kMostSlabs) return alone;
    if (!device.cooperative) return twice(p, dtype, device, aligned, 1);
    const Plan split = plan_for(p, dtype, device, 512, aligned, false);
    if (reads_once(p, split)) return split;
    const Plan again = once(p, dtype, device);
    return again.splits > 0 ? again : streaming(p, dtype, device);
}

// The fast kernel's plans, none twice; empty if only the general kernel will do. The shipped one is first, then what is
// shipped where there are no cooperative launches, for a device that has no room for this one.
inline std::vector<Plan> plans(const Problem& p, Dtype dtype, const Device& device) {
    std::vector<Plan> all;
    if (unit_lanes(p, dtype) == 0) return all;
    const auto add = [&](const Plan& plan) {
        const auto same = [&](const Plan& other) { return name_of(other) == name_of(plan); };
        if (std::none_of(all.begin(), all.end(), same)) all.push_back(plan);
    };
    const int64_t narrow = tile(p, dtype, 64, 1), aligned = tile(p, dtype, 128, 32);
    add(shipped(p, dtype, device));
    Device without = device;
    without.cooperative = false;
    add(shipped(p, dtype, without));
    for (const int threads : {512, 256})
        if (const Plan alone = plan_for(p, dtype, device, threads, narrow, true); threads == 512 || reads_once(p, alone))
            add(alone);
    if (device.cooperative && slabs_of(p, dtype, narrow) <= kMostSlabs) {
        add(plan_for(p, dtype, device, 512, aligned, false));
        add(plan_for(p, dtype, device, 512, narrow, false));
        add(plan_for(p, dtype, device, 256, aligned, false));
        if (const Plan again = once(p, dtype, device); again.splits > 0) add(again);
        add(streaming(p, dtype, device));
    }
    for (const int rounds : {1, 2})
        for (const int64_t lanes : {aligned, narrow})
            if (slabs_of(p, dtype, lanes) <= kMostSlabs) add(twice(p, dtype, device, lanes, rounds));
    return all;
}

// So few that a wave has one or two parts a lane, and as many as a team has blocks; 0 where that is so without teams.
inline int64_t teams_of(int64_t splits) {
    if (splits <= kMostParts) return 0;
    int64_t teams = 1;
    while (teams * teams < splits) ++teams;
    return ceil_div(splits, ceil_div(splits, teams));
}

// Splits the rows of every slab evenly, into `wanted` blocks or as many fewer as whole rows allow.
inline void split(Args& args, int64_t slabs, int64_t wanted) {
    args.slabs = args.launch_slabs = static_cast<int32_t>(slabs);
    args.split_rows = static_cast<int32_t>(ceil_div(args.hw, wanted));
    args.splits = static_cast<int32_t>(ceil_div(args.hw, args.split_rows));
}

// Blocks of one slab are consecutive.
inline Launch launch_of(std::string kernel, uint32_t threads, const Args& args) {
    const bool alone = args.splits == 1;
    return make_launch(std::move(kernel), alone ? args.slabs : args.splits, alone ? 1 : args.launch_slabs, threads, args);
}

// measure, then apply.
inline std::vector<Launch> two_launches(const std::string& kernel, uint32_t threads, const Args& args) {
    return {launch_of(kernel + "measure", threads, args), launch_of(kernel + "apply", threads, args)};
}

// Cooperative ones, each with as many slabs as are resident together.
inline std::vector<Launch> together(const std::string& kernel, Args args, const Instance& instance, const Device& device) {
    const int32_t most = static_cast<int32_t>(resident(instance, device) / args.splits);
    std::vector<Launch> launches;
    for (; args.first_slab < args.slabs; args.first_slab += args.launch_slabs) {
        args.launch_slabs = std::min(most, args.slabs - args.first_slab);
        launches.push_back(launch_of(kernel, instance.threads, args));
        launches.back().cooperative = true;
    }
    return launches;
}

inline std::vector<Launch> fast(const Problem& p, Dtype dtype, const Device& device, const Plan& plan) {
    const int64_t vector = 16 / size_of(dtype);
    Args args = arguments(p);
    args.lanes = static_cast<int32_t>(plan.lanes);
    args.lane_inverse = static_cast<int32_t>(ceil_div(1 << 16, plan.lanes));
    args.group_inverse = static_cast<int32_t>(ceil_div(1 << 16, args.group_channels));
    args.step_rows = static_cast<int32_t>(step_rows(plan));
    args.tiles = static_cast<int32_t>(p.channels / (plan.lanes * vector));
    args.tile_inverse = static_cast<int32_t>(ceil_div(1 << 24, args.tiles));
    args.tile_groups = static_cast<int32_t>(p.groups / args.tiles);
    args.group_lanes = static_cast<int32_t>(group_lanes(p, dtype, plan.lanes));
    split(args, slabs_of(p, dtype, plan.lanes), plan.splits);
    args.steps = static_cast<int32_t>(ceil_div(args.split_rows, args.step_rows));
    if (plan.twice) return two_launches(std::string("group_norm_") + suffix(dtype) + "_", plan.instance.threads, args);
    args.teams = static_cast<int32_t>(teams_of(args.splits));
    args.team_splits = static_cast<int32_t>(args.teams ? ceil_div(args.splits, args.teams) : 1);
    const std::string kernel = kernel_of(plan.instance, dtype, args.splits == 1);
    if (args.splits == 1) return {launch_of(kernel, plan.instance.threads, args)};
    return together(kernel, args, plan.instance, device);
}

// Blocks for two launches, as many as keep the device busy.
inline int64_t general_splits(const Problem& p, const Device& device) {
    const int64_t slabs = p.images * p.groups;
    if (slabs > kMostSlabs) return 1;
    return std::clamp<int64_t>(std::min<int64_t>(4 * device.compute_units / slabs, kMostParts), 1, ceil_div(p.hw, 16));
}

inline std::vector<Launch> general(const Problem& p, Dtype dtype, const Device& device) {
    Args args = arguments(p);
    args.tiles = static_cast<int32_t>(p.groups);
    args.tile_groups = 1;
    split(args, p.images * p.groups, general_splits(p, device));
    const std::string kernel = std::string("group_norm_") + suffix(dtype) + "_general";
    if (args.splits > 1) return two_launches(kernel + "_", kGeneralThreads, args);
    return {launch_of(kernel, kGeneralThreads, args)};
}

// What every variant of this problem needs: 16 bytes a group and block that has a part of its statistics.
inline size_t workspace_bytes(const Problem& p, const Device& device, const std::vector<Plan>& plans) {
    int64_t splits = general_splits(p, device);
    for (const Plan& plan : plans) splits = std::max(splits, plan.splits + teams_of(plan.splits));
    return 8 * kParts + 16 * p.images * p.groups * splits;
}

// Every kernel that variants() may lead to.
inline std::vector<std::string> kernels(Dtype dtype, const Device& device) {
    std::vector<std::string> names;
    for (const char* const name : {"general", "general_measure", "general_apply", "measure", "apply"})
        names.push_back(std::string("group_norm_") + suffix(dtype) + "_" + name);
    for (const Instance& instance : kInstances) {
        if (instance.kept == 0) names.push_back(kernel_of(instance, dtype, true));
        if (device.cooperative) names.push_back(kernel_of(instance, dtype, false));
    }
    return names;
}

inline std::vector<std::string> variants(const std::vector<Plan>& plans) {
    std::vector<std::string> names;
    for (const Plan& plan : plans) names.push_back(name_of(plan));
    if (names.empty()) names.push_back("general");
    return names;
}

inline std::vector<Launch> launches(const Problem& p, Dtype dtype, const Device& device, const std::vector<Plan>& plans,
                                    const std::string& variant) {
    for (const Plan& plan : plans)
        if (name_of(plan) == variant) return fast(p, dtype, device, plan);
    if (variant != "general") throw Error("GroupNorm has no variant " + variant);
    return general(p, dtype, device);
}

// For whom a problem comes but once.
inline std::vector<std::string> variants(const Problem& p, Dtype dtype, const Device& device) {
    return variants(plans(p, dtype, device));
}
inline std::vector<Launch> launches(const Problem& p, Dtype dtype, const Device& device, const std::string& variant) {
    return launches(p, dtype, device, plans(p, dtype, device), variant);
}

}  // namespace sdort::group_norm
