// BiasAdd: Y[n, s, c] = X[n, s, c] + bias[c] + skip[n, s, c].
//
// Shapes      X, skip, Y (N, S, C); bias (C); fp16 or fp32, added in fp32 and rounded once.
// Geometry    a thread owns one 16-byte column of C (one element where C is no multiple of 16 bytes: "narrow") and walks
//             rows with a stride of the whole grid, so its bias stays in registers and every access of a wave is
//             contiguous. 256 threads: eight waves of 32 hide the latency of memory, and C = 320 to 1280 in fp16 needs 40
//             to 160 columns, so a block spans one to six rows.
// Registers   9 to 36 of a lane, no shared memory: eight blocks a compute unit on every GPU (REGISTERS.md).
// Roofline    reads 2 and writes 1 element per element: 6 bytes in fp16; 2 flops, so bandwidth-bound everywhere.
// Measured    H100 80GB, 2026-11-22, fp16: 2x4096x320 7.3 µs (72% of copy), 2x256x1280 3.4 µs (39% of copy); not measured on
//             AMD hardware.
#pragma once

#include "rows/rows.h"

namespace sdort::bias_add {

struct Tensors {
    const void* x;
    const void* bias;
    const void* skip;
    void* y;
};

struct Args;

struct Problem : Tensors {
    static constexpr const char* kName = "bias_add";
    using Args = bias_add::Args;
    int64_t rows;   // N * S
    int64_t width;  // C
};

struct Args : Tensors, rows::Columns {};

}  // namespace sdort::bias_add
