// SkipLayerNormalization: S = X + skip + bias; Y = (S - mean) / sqrt(variance + epsilon) * gamma + beta, over the last axis.
//
// Shapes      X, Y, S (rows, C); skip (skip rows, C), row r reads row r modulo the skip rows; gamma, beta, bias (C).
// Geometry    16, 32 or 128 lanes own a row and keep it in registers, V vectors of 16 bytes a lane ("l32v5"): one pass over
//             memory, and the variance is the mean of (S - mean)^2, exact where mean >> std. Lanes of one wave need no LDS and
//             no barrier; 128 shorten what a lane does after its loads, which is what few rows wait for. C = 320, 640 and 1280
//             in fp16 are 40, 80 and 160 vectors: 16 x 3, 32 x 3 and 32 x 5 leave a sixth of the room or none. Blocks of
//             128 threads: eight rows at most, so few wait for the slowest load. A loop over rows with gamma, beta and
//             bias kept in registers is 2 % slower. S is stored before the sums, while lanes would wait for each other.
//             Wider rows, or ones that 16 bytes do not divide, are read three times by a wave ("wide").
// Registers   24 to 40 of a lane with one vector, 46 to 70 with two, 67 to 98 with three, 109 to 146 with five; 32 bytes of
//             shared memory. Blocks a compute unit at least: sixteen, twelve, eight and six on AMD GPUs, twelve, eight,
//             six and three on NVIDIA (REGISTERS.md).
// Roofline    8 bytes an element in fp16 with S written (read 2, write 2), 6 without; about 10 flops: bandwidth-bound.
// Measured    H100 80GB, 2026-11-23, fp16: 2x4096x320 9.3 µs (76% of copy), 2x1024x640 5.7 µs (62% of copy); not measured
//             on AMD hardware.
#pragma once

#include "rows/rows.h"

namespace sdort::skip_layer_norm {

struct Tensors {
    const void* x;
    const void* skip;
    const void* gamma;
    const void* beta;  // or null
    const void* bias;  // or null
    void* y;
    void* sum;         // or null
};

struct Problem : Tensors {
    static constexpr const char* kName = "skip_layer_norm";
    int64_t rows;
    int64_t skip_rows;
    int64_t width;
    float epsilon;
};

struct Args : Tensors {
    uint32_t rows;
    uint32_t skip_rows;
    uint32_t width;
    float epsilon;
};

}  // namespace sdort::skip_layer_norm
