// GroupNorm: S = X + skip + bias + embedding, Y = act((S - mean) / sqrt(variance + epsilon) * gamma + beta).
//
// Shapes      X (N, H*W, C), or X and X2 side by side, C = C1 + C2, as if concatenated; Y, S, skip as (N, H*W, C); bias (C);
//             embedding (N, C); gamma, beta (C) in fp32, or in fp16. mean and variance over a group's H*W x C / groups elements. fp16
//             or fp32; computed in fp32. S is rounded to the tensors' type before it is normalized, as the graph does that
//             has it as a tensor. act is SiLU or nothing.
//
// Geometry    A tile is the fewest whole groups that are also whole 16-byte vectors, lcm(8, channels of a group) in fp16, or a
//             multiple of it that makes rows of 128 bytes or more and of whole 32-byte sectors; a slab is a tile over all of
//             H*W of one image. A lane owns one vector of the row for good, so it keeps what belongs to channels in registers,
//             and groups meet only when lanes' sums are merged. Idle are threads % lanes, 2 of 512 for the UNet's tiles.
//             A block keeps its rows in registers: 512 threads with 4, 8 or 16 rows each, whichever suffices (up to 128 KiB a
//             compute unit, 64 of 128 registers), as half of the threads have nothing else to hide latency behind.
//             UNets have 8 to 64 slabs and GPUs 32 to 304 compute units, so a slab is split over several blocks, which
//             need each other's statistics. Blocks of a plain launch must not wait for each other: beside another stream's or
//             process's blocks, under a mask of compute units, they may never be on the device together, and hang it.
//             NVIDIA: one cooperative launch, whose blocks the driver has on the device together, exchanges statistics
//             (exchange.h), above 24 KiB a slab; below, one block is sooner done. A slab has no more blocks than
//             there are multiprocessors. Images too large for that (the VAE's from 256 x 256 on) go through blocks of 128
//             threads, four a multiprocessor, which keep 12 rows a lane in registers and 20 in shared memory, 256 KiB a
//             multiprocessor of an H100. A slab of the VAE, 128 bytes of every pixel, fits 132 or all 528 of them, and a launch
//             has as many slabs as fit; while its blocks wait, they fetch the next one's first rows into the cache.
//             Above 160 blocks a slab, teams of blocks exchange statistics first: a wave gathers five parts a lane at a time.
//             Where not even a slab fits, as many blocks as are resident keep what they can, and read the rest once more,
//             from the end, where it may still be in the cache.
//             AMD, whose driver launches cooperative grids through another queue with waits of the host around them, and
//             where a cooperative grid has no room: a block has a slab alone if it reads it once; else two launches, one that
//             measures and one that applies, with the statistics of at most 160 blocks a slab in the workspace between them.
//             More groups than two in a vector, channels that are no multiple of it, groups of more than 256 channels: a
//             general variant, an element at a time, a block a group or two launches of several, that reads twice.
// Registers   76 to 162 of a lane, 18 to 50 of the general variant; 3 to 48 KiB of shared memory. As many blocks a
//             compute unit as the instance says, where shared memory has room for them (REGISTERS.md).
// Roofline    2 bytes read and 2 written an element in fp16, each once, plus 2 for skip and 2 for S; about 15 flops, of which
//             SiLU's 1.5 exponentials and reciprocals are slowest: 16 a clock and compute unit are 11 elements, where memory
//             brings 2 to 4 (MI300X, H100). Bandwidth-bound above 4 MiB or so; below, latencies, the exchange and the launch
//             take longer. What a GPU cannot keep is read twice, 6 bytes an element but for what its cache still has.
// Measured    H100 80GB, 2026-11-22, fp16: 1x256x256x512 silu 62.1 µs (73% of copy), 1x512x512x256 silu 135.4 µs (67% of copy),
//             2x64x64x320 silu 9.8 µs (36% of copy); not measured on AMD hardware.
#pragma once

#include <stdint.h>

namespace sdort::group_norm {

struct Args {
    const void* x;          // (N, H*W, x_channels)
    const void* x2;         // (N, H*W, channels - x_channels), or null
    const void* skip;       // (N, H*W, channels), or null
    const void* bias;       // (channels), or null
    const void* embedding;  // (N, channels), or null
    const void* gamma;      // (channels)
    const void* beta;       // (channels)
    void* y;
    void* sum;            // S, or null
    uint64_t* workspace;  // a counter of launches, then from kParts on the parts of the statistics; unused if splits == 1
    float epsilon;
    int32_t silu;
    int32_t half_affine;  // whether gamma and beta are fp16, not fp32
    int32_t hw;
    int32_t channels;
    int32_t x_channels;
    int32_t group_channels;
    int32_t slabs;        // a slab is one channel tile of one image over all of H*W
    int32_t first_slab, launch_slabs;  // of a launch: several follow each other where not all slabs are resident together
    int32_t tiles;        // of an image
    int32_t tile_groups;  // groups of a tile
    int32_t lanes;        // vectors of a tile's row; unused by the general kernel
    // Divisions take a hundred cycles, these three: t / lanes = t * lane_inverse >> 16 for any thread t; channel of a tile /
    // group_channels likewise; slab / tiles = slab * tile_inverse >> 24.
    int32_t lane_inverse, group_inverse, tile_inverse;
    int32_t step_rows;    // rows that a block reads at a time: threads / lanes
    int32_t steps;        // of step_rows rows each in split_rows
    int32_t group_lanes;  // most lanes that any group of a tile touches
    int32_t splits;       // blocks of a slab; each has split_rows consecutive rows, the last one what is left
    int32_t split_rows;
    int32_t teams;        // of a slab's blocks, which publish their parts together as one more each; 0: every block alone
    int32_t team_splits;  // blocks of a team, the last one's are what is left
};

constexpr uint64_t kLaunch = 1 << 16;  // more than the blocks of a launch that exchanges parts
constexpr int kParts = 16;             // words: the counter has a cache line of its own
constexpr int kGeneralThreads = 256;
constexpr int kTwoThreads = 256, kTwoRows = 8, kTwoBlocks = 2;  // of each of two launches
constexpr int kBatch = 5;             // parts that a lane gathers at a time where there are many
constexpr int kMostParts = 32 * kBatch, kMostTeams = 32;  // of a slab; no more than a wave has lanes for
constexpr int kMostGroups = 64, kMostChannels = 256;  // of a tile

}  // namespace sdort::group_norm
