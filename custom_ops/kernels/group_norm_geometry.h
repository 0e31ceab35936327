#pragma once

#include <algorithm>
#include <string>
#include <vector>

#include "driver/error.h"
#include "driver/launch.h"
#include "group_norm.h"

namespace sdort::group_norm {

struct Problem {
    const void* x;
    const void* x2;
    const void* skip;
    const void* bias;
    const void* embedding;
    const void* gamma;
    const void* beta;
    void* y;
    void* sum;
    void* workspace;  // workspace_bytes() of memory that was zero before its first launch
    float epsilon;
    int32_t silu;
    int64_t images;
    int64_t hw;
    int64_t channels;
    int64_t x_channels;  // channels, or fewer if there is an X2
    int64_t groups;
};

inline Args arguments(const Problem& p) {
    Args args{};
    args.x = p.x;
    args.x2 = p.x2;
    args.skip = p.skip;
    args.bias = p.bias;
    args.embedding = p.embedding;
    args.gamma = static_cast<const float*>(p.gamma);
    args.beta = static_cast<const float*>(p.beta);
    args.y = p.y;
    args.sum = p.sum;
    args.workspace = static_cast<uint64_t*>(p.workspace);
    args.epsilon = p.epsilon;
    args.silu = p.silu;
    args.hw = static_cast<int32_t>(p.hw);
    args.channels = static_cast<int32_t>(p.channels);
    args.x_channels = static_cast<int32_t>(p.x_channels);
    args.group_channels = static_cast<int32_t>(p.channels / p.groups);
    return args;
}

// Splits the rows of every slab evenly, into `wanted` blocks or as many fewer as whole rows allow.
inline void split(Args& args, int64_t slabs, int64_t wanted) {
    args.slabs = static_cast<int32_t>(slabs);
    args.split_rows = static_cast<int32_t>(ceil_div(args.hw, wanted));
    args.splits = static_cast<int32_t>(ceil_div(args.hw, args.split_rows));
}

inline Launch launch_of(std::string kernel, uint32_t threads, const Args& args) {
    const bool alone = args.splits == 1;
    return make_launch(std::move(kernel), alone ? args.slabs : args.splits, alone ? 1 : args.slabs, threads, args);
}

inline Launch general(const Problem& p, Dtype dtype, const Device& device) {
    Args args = arguments(p);
    args.tiles = static_cast<int32_t>(p.groups);
    args.tile_groups = 1;
    const int64_t slabs = p.images * p.groups;
    split(args, slabs, std::clamp<int64_t>(device.compute_units / slabs, 1, ceil_div(p.hw, 16)));
    return launch_of(std::string("group_norm_") + suffix(dtype) + "_general", kGeneralThreads, args);
}

// What every variant of this problem needs; their parts of the statistics are at most 16 bytes a group and block.
inline size_t workspace_bytes(const Problem& p, const Device& device) {
    return 8 * kParts + 16 * std::max<size_t>(p.images * p.groups, device.compute_units);
}

// Every kernel that variants() may lead to.
inline std::vector<std::string> kernels(Dtype dtype) { return {std::string("group_norm_") + suffix(dtype) + "_general"}; }

// All that the speed depends on.
inline std::string key(const Problem& p, Dtype dtype) {
    std::string text = std::string("group_norm ") + suffix(dtype) + " n=" + std::to_string(p.images) + " hw=" +
                       std::to_string(p.hw) + " c=" + std::to_string(p.channels) + " groups=" + std::to_string(p.groups);
    if (p.silu) text += " silu";
    if (p.x2) text += " x2=" + std::to_string(p.channels - p.x_channels);
    if (p.skip) text += " skip";
    if (p.bias || p.embedding) text += " shift";
    if (p.sum) text += " sum";
    return text;
}

inline std::vector<std::string> variants(const Problem&, Dtype, const Device&) { return {"general"}; }

inline std::vector<Launch> launches(const Problem& p, Dtype dtype, const Device& device, const std::string&) {
    return {general(p, dtype, device)};
}

}  // namespace sdort::group_norm
