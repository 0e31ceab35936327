// BiasSplitGelu: Y[r, h] = (X[r, h] + bias[h]) * gelu(X[r, H + h] + bias[H + h]), the GEGLU of diffusion transformers.
//
// Shapes      X (N, S, 2H), bias (2H), Y (N, S, H); r counts the N * S rows; fp16 or fp32, computed in fp32, rounded once.
// Geometry    a thread owns one 16-byte column of each half and walks rows with a stride of the whole grid, so its 16
//             biases stay in registers and the accesses of a wave are contiguous. `Rows` rows are in flight at a time
//             (r1, r2, r4): with 256 threads and five blocks a compute unit or more one is enough to keep an H100's
//             memory busy; RDNA, with fewer waves a SIMD, gains from two. Widths that 16 bytes do not divide walk element by
//             element ("narrow").
// Registers   15 to 93 of a lane, no shared memory. Blocks a compute unit at least: on AMD GPUs eight (r1, r2) or six
//             (r4), on NVIDIA five, four and three (REGISTERS.md).
// Roofline    6 bytes an output in fp16 (two reads, one write), about 20 flops: 3 flops a byte, bandwidth-bound on every
//             GPU; attainable is the copy bandwidth.
// Measured    H100 80GB, 2026-11-22, fp16: 2x4096x2560 23.5 µs (90% of copy), 2x1024x5120 12.8 µs (83% of copy); not measured
//             on AMD hardware.
#pragma once

#include "rows/rows.h"

namespace sdort::bias_split_gelu {

struct Tensors {
    const void* x;
    const void* bias;
    void* y;
};

struct Problem : Tensors {
    static constexpr const char* kName = "bias_split_gelu";
    int64_t rows;   // N * S
    int64_t width;  // H, of the output
};

struct Args : Tensors {
    uint32_t rows;
    uint32_t columns;     // of the output, in vectors: H / (elements of a vector)
    uint32_t row_stride;  // rows that the grid covers at a time
};

}  // namespace sdort::bias_split_gelu
