// What is to be computed, as the operators, the CPU code and the tests say it.
#pragma once

#include <string>

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
    int32_t half_affine;  // whether gamma and beta are fp16, not fp32
    int64_t images;
    int64_t hw;
    int64_t channels;
    int64_t x_channels;  // channels, or fewer if there is an X2
    int64_t groups;
};

// All but the geometry.
inline Args arguments(const Problem& p) {
    Args args{};
    args.x = p.x;
    args.x2 = p.x2;
    args.skip = p.skip;
    args.bias = p.bias;
    args.embedding = p.embedding;
    args.gamma = p.gamma;
    args.beta = p.beta;
    args.half_affine = p.half_affine;
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

inline bool is_empty(const Problem& p) { return p.images * p.hw * p.channels == 0; }

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

}  // namespace sdort::group_norm
