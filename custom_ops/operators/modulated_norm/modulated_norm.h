// ModulatedLayerNormalization: Y = norm(S) * scale + shift, over the last axis, with S = X, or of the gated forms
// S = X + gate * (branch + bias), which is an output, too. norm(S) = (S - mean) / sqrt(variance + epsilon), or of the forms
// with RMS in their names S / sqrt(mean(S^2) + epsilon) * weight; there the branch is normalized likewise, times its factor.
//
// Shapes      X, branch, Y, S (rows, C); gate, scale, shift (images, C), a row's image is the row divided by the rows of an
//             image; bias, factor, weight (C); a second scale and shift make Y2 of the same norm. fp16 or fp32, computed in
//             fp32, rounded once: the norm is of the sum before it is rounded.
// Geometry    that of skip_layer_norm: 16, 32 or 128 lanes own a row and keep it in registers ("l32v5"). X and what is added
//             to it are loaded together; scale and shift, which all rows of an image share in the cache, before the sums that
//             they wait for. C = 1536, 3072 and 3840 in fp16 are 192, 384 and 480 vectors: 128 x 2, 128 x 3, 128 x 5. Wider
//             rows, or ones that 16 bytes do not divide, are read again for each pass by a wave ("wide").
// Registers   24 to 42 of a lane with one vector, 39 to 65 with two, 58 to 96 with three, 94 to 168 with five; 48 bytes of
//             shared memory, or 24. Blocks a compute unit at least: sixteen, sixteen, ten and six on AMD GPUs, twelve,
//             eight, five and three on NVIDIA (REGISTERS.md).
// Roofline    8 bytes an element in fp16 with S (read 2, write 2), 4 without (read 1, write 1), 2 more with Y2; about 12 flops:
//             bandwidth-bound.
// Measured    H200, 2026-11-28, fp16: 1x4608x3072 18.6 µs (73% of copy), 1x4096x1536 11.6 µs (52% of copy); not measured on AMD
//             hardware.
#pragma once

#include "rows/rows.h"

namespace sdort::modulated_norm {

struct Tensors {
    const void* x;
    const void* branch;  // or null: X alone is normalized
    const void* bias;    // of the branch, or null
    const void* factor;  // of the branch's norm, or null: it has none
    const void* gate;
    const void* weight;  // or null
    const void* scale;
    const void* shift;   // or null
    const void* scale2;
    const void* shift2;
    void* y;
    void* y2;            // or null
    void* sum;           // or null
};

struct Problem : Tensors {
    static constexpr const char* kName = "modulated_norm";
    int64_t rows;
    int64_t image_rows;
    int64_t width;
    int64_t rms;  // whether the norm is by the root mean square
    float epsilon;
    float branch_epsilon;
};

struct Args : Tensors {
    uint32_t rows;
    uint32_t image_rows;
    uint32_t width;
    uint32_t rms;
    float epsilon;
    float branch_epsilon;
};

}  // namespace sdort::modulated_norm
