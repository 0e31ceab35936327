// GroupNorm, in one launch: S = X + skip + bias + embedding, Y = act((S - mean) / sqrt(variance + epsilon) * gamma + beta).
//
// Shapes      X (N, H*W, C), or X and X2 side by side, C = C1 + C2, as if concatenated; Y, S, skip as (N, H*W, C); bias (C);
//             embedding (N, C); gamma, beta (C) in fp32. mean and variance over a group's H*W x C / groups elements. fp16
//             or fp32; computed in fp32. S is rounded to the tensors' type before it is normalized, as the graph does that
//             has it as a tensor. act is SiLU or nothing.
// Measured    see the README's table of operators; not measured on AMD hardware.
#pragma once

#include <stdint.h>

namespace sdort::group_norm {

struct Args {
    const void* x;          // (N, H*W, x_channels)
    const void* x2;         // (N, H*W, channels - x_channels), or null
    const void* skip;       // (N, H*W, channels), or null
    const void* bias;       // (channels), or null
    const void* embedding;  // (N, channels), or null
    const float* gamma;
    const float* beta;
    void* y;
    void* sum;            // S, or null
    uint64_t* workspace;  // a counter of launches, then from kParts on the parts of the statistics; null if splits == 1
    float epsilon;
    int32_t silu;
    int32_t hw;
    int32_t channels;
    int32_t x_channels;
    int32_t group_channels;
    int32_t slabs;        // a slab is one channel tile of one image over all of H*W
    int32_t tiles;        // of an image
    int32_t tile_groups;  // groups of a tile
    int32_t lanes;        // vectors of a tile's row; unused by the general kernel
    int32_t lane_inverse; // ceil(2^16 / lanes): t / lanes = t * lane_inverse >> 16 for any thread t
    int32_t step_rows;    // rows that a block reads at a time: threads / lanes
    int32_t steps;        // of step_rows rows each in split_rows
    int32_t group_lanes;  // most lanes that any group of a tile touches
    int32_t splits;       // blocks of a slab; each has split_rows consecutive rows, the last one what is left
    int32_t split_rows;
};

constexpr uint64_t kLaunch = 1 << 16;  // more than the blocks of a launch that exchanges parts
constexpr int kParts = 16;             // words: the counter has a cache line of its own
constexpr int kGeneralThreads = 256;
constexpr int kMostGroups = 64, kMostChannels = 256;  // of a tile

}  // namespace sdort::group_norm
