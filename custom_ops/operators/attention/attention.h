// MultiHeadAttention: Y[n, s, h] = softmax over l of (scale * Q[n, s, h] . K[n, l, h]), times V[n, l, h].
//
// Shapes      Q (N, S, h * d), K (N, L, h * d), V (N, L, h * e), Y (N, S, h * e), read in place wherever their rows lie:
//             packed as (N, S, h, 3, d) or (N, L, h, 2, d) or apart. e = d but in the general form.
//             bias (2 * h * d + h * e) is added to Q, K and V. K's share adds Q . bias to all scores of a row, which
//             softmax does not see, so it is not read; the weights of V sum to one, so V's share is added to Y.
//             causal: query s sees the keys up to s.
// Kernels     kernel.h: matrix instructions, fp16, d in kHeadSizes. general_kernel.h: the rest.
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

constexpr float kNever = -__builtin_huge_valf();  // the score of a key that a query does not see

}  // namespace sdort::attention
