// InterleavePhases: Y[n, 2i + a, 2j + b, c] = P[n, i + a, j + b, 2a + b, c] + bias[c], a and b 0 or 1: an image of twice the
// height and width from its four phases.
//
// P is a 2x2 convolution, padded by one, of the small image: a 3x3 convolution of the image that nearest neighbours made
// twice as large reads 2x2 pixels of the small one, and has four kernels, one for each phase (a, b) (Shi et al.,
// https://arxiv.org/abs/1609.07009; fusions/upsampling_convolution.py makes the kernels).
//
// Of an odd height 2H - 1 the last row lacks the pixels below it: what they would add is the difference of two rows of P,
// for which the small image got its last row twice (H + 2 rows of P):
//
//   Y[n, 2H - 2] = P[n, H - 1, .., 0] - P[n, H, .., 1] + P[n, H + 1, .., 1]       and so of an odd width
//
// Shapes      P (N, H + 1 or H + 2, W + 1 or W + 2, 4C), bias (C, optional), Y (N, 2H or 2H - 1, 2W or 2W - 1, C); fp16 or
//             fp32, added in fp32 and rounded once.
// Geometry    a row of blocks owns a row of Y, so n, i and a are the block's; a thread owns a 16-byte column of C (one
//             element where C is no multiple of 16 bytes: "narrow") and walks the row's pixels, so its bias stays in
//             registers. Two neighbours of a row lie side by side in P: a wave reads and writes whole cache lines.
//             `p2`, `p4`: pixels that a thread has in flight.
// Roofline    reads and writes an element once: 4 bytes an element in fp16, one addition (1 flops an element): bandwidth-bound
//             everywhere; attainable is the copy bandwidth.
// Measured    not measured.
#pragma once

#include "rows/rows.h"

namespace sdort::interleave_phases {

struct Tensors {
    const void* x;     // P
    const void* bias;  // or null
    void* y;
};

struct Problem : Tensors {
    static constexpr const char* kName = "interleave_phases";
    int64_t rows;         // N times height times image_width: pixels of Y
    int64_t width;        // C
    int64_t height;       // of Y
    int64_t image_width;  // of Y
};

struct Args : Tensors {
    uint32_t height;
    uint32_t image_width;
    uint32_t columns;  // of C, in vectors
    uint32_t stride;   // pixels that a row of blocks covers at a time
};

}  // namespace sdort::interleave_phases
