// MultiHeadAttention: Y[n, s, h] = softmax over l of (scale * Q[n, s, h] . K[n, l, h]), times V[n, l, h].
//
// Shapes      Q (N, S, h * d), K (N, L, h * d), V (N, L, h * e), Y (N, S, h * e), read in place wherever their rows lie:
//             packed as (N, S, h, 3, d) or (N, L, h, 2, d) or apart. e = d but in the general form.
//             bias (2 * h * d + h * e) is added to Q, K and V. K's share adds Q . bias to all scores of a row, which
//             softmax does not see, so it is not read; the weights of V sum to one, so V's share is added to Y.
//             causal: query s sees the keys up to s.
// Kernels     kernel.h: matrix instructions, fp16, d in kHeadSizes; flash_wgmma_kernel.h: d = 40, 64 and 80 on Hopper.
//             wide_kernel.h and, on Hopper, wide_wgmma_kernel.h: fp16, d above 160 in whole 32s. general_kernel.h: the rest.
// Geometry    a workgroup of four waves has 64 or 128 queries of one head, 16 or 32 a wave (q1, q2): with 32, what is read of
//             K and V in shared memory serves twice as many products, with 16 more workgroups find room. Keys come in
//             tiles of 32 or 64 (k), scored 32 or 64 at a time (s), or all at once where there are 80 or fewer (whole),
//             without an online softmax. Heads are the grid's fastest dimension, so that tiles of one head meet in a cache.
// Roofline    4 * N * h * S * L * d flops and N * h * S * L exponentials for 2 * N * h * d * (2 S + 2 L) bytes in fp16: at
//             S = L = 4096 and d = 40 bound by exponentials (16 a clock and multiprocessor: 0.07 ms on an H100) and matrix
//             products (d padded to 48: 0.07 ms) alike; with 77 keys bandwidth-bound.
// Measured    H100 80GB, 2026-11-22, fp16: 2x4096x4096 8x40 186.9 µs (4% of copy), 2x4096x77 8x40 11.2 µs (32% of copy); not
//             measured on AMD hardware.
#pragma once

#include <stdint.h>

namespace sdort::attention {

// Where element i of row r of head h of batch n lies: data[n * batch + r * row + h * head + i].
struct Tensor {
    const void* data;
    int64_t batch;
    int64_t row;
    int64_t head;
};

struct Problem {
    Tensor q, k, v;
    const void* bias;  // or null
    void* y;
    void* workspace;  // workspace_bytes of geometry.h
    int64_t batches, heads, queries, keys;
    int64_t size;        // d
    int64_t value_size;  // e
    float scale;
    int32_t causal;
};

struct Args {
    Tensor q, k, v;
    const void* bias;
    void* y;
    int32_t heads, queries, keys, size, value_size;
    int32_t causal;
    float scale;     // times log2(e): the exponential is one of base 2
    int32_t slices;  // of the general form: workgroups that share the columns of one Y tile
};

// Of wide heads: a part of the queries, tiles of kWideTile numbered through all heads of all batches (wide_kernel.h).
struct WideArgs {
    Tensor q, k, v;
    void* y;
    void* weights;  // fp16, rows of `pitch`
    float* shifts;  // rows of `rows`, one a segment of kWideSegment keys
    float* sums;    // likewise
    int32_t heads, queries, keys, size, value_size;
    int32_t tiles;  // of a head's queries
    int32_t first;  // tile
    int32_t pitch;  // keys, up to a whole tile
    int32_t rows;   // queries of the part
    float scale;    // times log2(e)
};
constexpr int kWideTile = 128, kWideQueries = 64, kWideSegment = 64;

// Of their kernels for Hopper (wide_wgmma_kernel.h): bytes of shared memory, tiles with room to align them.
constexpr int kWgmmaThreads = 256, kWgmmaKeys = 256, kWgmmaScoresStages = 4, kWgmmaValuesStages = 6;
constexpr int kWgmmaScoresBytes = 1024 + kWgmmaScoresStages * (48 << 10);
constexpr int kWgmmaValuesBytes = 1024 + kWgmmaValuesStages * (32 << 10);

// Of the one for heads that registers hold (flash_wgmma_kernel.h), whose rows take tiles of 64 columns.
constexpr int kFlashWgmmaQueries = 128, kFlashWgmmaKeys = 64, kFlashWgmmaStages = 4;
constexpr int kFlashWgmmaBytes = 128 * (kFlashWgmmaQueries + kFlashWgmmaStages * 2 * kFlashWgmmaKeys);  // of 64 columns

constexpr float kNever = -__builtin_huge_valf();  // the score of a key that a query does not see

}  // namespace sdort::attention
