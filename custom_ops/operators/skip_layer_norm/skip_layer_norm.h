// SkipLayerNormalization: S = X + skip + bias; Y = (S - mean) / sqrt(variance + epsilon) * gamma + beta, over the last axis.
//
// Shapes      X, Y, S (rows, C); skip (skip rows, C), row r reads row r modulo the skip rows; gamma, beta, bias (C).
// Geometry    one, two or four waves own a row and keep it in registers, V vectors of 16 bytes a lane ("w2v1"): one pass
//             over memory, and the variance is the mean of (S - mean)^2, exact where mean >> std. A wave alone needs no
//             LDS and no barrier; more waves shorten what a lane does after its loads, which is what small tensors wait
//             for. Blocks of 256 threads. C = 1280 in fp16 is 160 vectors: five waves' worth of 32 lanes, three of 64.
//             Wider rows, or ones that 16 bytes do not divide, are read three times by a wave ("wide").
// Registers   24 to 44 of a lane with one vector, 45 to 77 with two, 65 to 113 with three; 64 bytes of shared memory where
//             waves share a row. Blocks a compute unit at least: eight, six and four on AMD GPUs, five, three and two
//             on NVIDIA (REGISTERS.md).
// Roofline    8 bytes an element in fp16 with S written (read 2, write 2), 6 without; about 10 flops: bandwidth-bound.
// Measured    H100 80GB, 2026-11-22, fp16: 2x4096x320 10.0 µs (71% of copy), 2x1024x640 5.7 µs (61% of copy); not measured on
//             AMD hardware.
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
