// GatedSum: Y = X + gate * (branch + bias), what a modulated block writes to its stream.
//
// Shapes      X, branch, Y (rows, C); gate (images, C), a row's image is the row divided by the rows of an image; bias (C); fp16
//             or fp32, computed in fp32, rounded once.
// Geometry    a thread owns a 16-byte column of C and walks rows with a stride of the whole grid (rows/geometry.h), so its bias
//             stays in registers; gates, which all rows of an image share, come from the cache.
// Registers   14 to 44 of a lane, no shared memory: eight blocks a compute unit on AMD GPUs, six on NVIDIA (REGISTERS.md).
// Roofline    6 bytes an element in fp16 (read 2, write 1), 3 flops: bandwidth-bound everywhere.
// Measured    H200, 2026-11-28, fp16: 1x4608x3072 22.3 µs (92% of copy), 1x4096x1536 11.4 µs (79% of copy); not measured on AMD
//             hardware.
#pragma once

#include "rows/rows.h"

namespace sdort::gated_sum {

struct Tensors {
    const void* x;
    const void* branch;
    const void* bias;
    const void* gate;
    void* y;
};

struct Args;

struct Problem : Tensors {
    static constexpr const char* kName = "gated_sum";
    using Args = gated_sum::Args;
    int64_t rows;
    int64_t image_rows;
    int64_t width;
};

struct Args : Problem, rows::Columns {};

}  // namespace sdort::gated_sum
