// SkipLayerNormalization: S = X + skip + bias; Y = (S - mean) / sqrt(variance + epsilon) * gamma + beta, over the last axis.
//
// Shapes      X, Y, S (rows, C); skip (skip rows, C), row r reads row r modulo the skip rows; gamma, beta, bias (C).
// Geometry    a wave owns a row and keeps it in registers: V vectors of 16 bytes a lane ("v1" to "v10"), so there is no LDS
//             and no barrier, and the variance is the mean of (S - mean)^2, exact where mean >> std. Blocks of 256
//             threads hold four rows (waves of 64) or eight. C = 1280 in fp16 takes 5 vectors, 40 floats, of a lane of 32.
//             Wider rows, or ones that 16 bytes do not divide, are read three times by a wave ("wide").
// Roofline    8 bytes an element in fp16 with S written (read 2, write 2), 6 without; about 10 flops: bandwidth-bound.
// Measured    see the README's table of operators; not measured on AMD hardware.
#pragma once

#include <stdint.h>

namespace sdort::skip_layer_norm {

constexpr int kThreads = 256;

struct Args {
    const void* x;
    const void* skip;
    const void* gamma;
    const void* beta;  // or null
    const void* bias;  // or null
    void* y;
    void* sum;         // or null
    uint32_t rows;
    uint32_t skip_rows;
    uint32_t width;
    float epsilon;
};

}  // namespace sdort::skip_layer_norm
