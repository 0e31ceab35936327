// LayerNormalization: Y = (X - mean) / sqrt(variance + epsilon) * gamma + beta, over a row.
//
// Shapes      X, Y (rows, C); gamma, beta (C); fp16 or fp32, computed in fp32, rounded once.
// Geometry    as of skip_layer_norm: 16, 32 or 128 lanes own a row and keep it in registers ("l32v5"), one pass over memory.
// Registers   22 to 34 of a lane with one vector, 34 to 56 with two, 46 to 80 with three, 70 to 128 with five; 32 bytes of
//             shared memory. Blocks a compute unit at least: sixteen, sixteen, twelve and eight on AMD GPUs, sixteen,
//             nine, seven and four on NVIDIA (REGISTERS.md).
// Roofline    4 bytes an element in fp16 (read 1, write 1), about 8 flops: bandwidth-bound.
// Measured    H100 80GB, 2026-11-23, fp16: 2x4096x320 5.5 µs (64% of copy), 2x1024x640 3.9 µs (46% of copy); not measured
//             on AMD hardware.
#pragma once

#include "rows/rows.h"

namespace sdort::layer_norm {

struct Tensors {
    const void* x;
    const void* gamma;
    const void* beta;  // or null
    void* y;
};

struct Problem : Tensors {
    static constexpr const char* kName = "layer_norm";
    int64_t rows;
    int64_t width;
    float epsilon;
};

struct Args : Tensors {
    uint32_t rows;
    uint32_t width;
    float epsilon;
};

}  // namespace sdort::layer_norm
