// SplitSilu: Y[r, h] = X[r, h] * a(X[r, H + h]) with a(x) = x / (1 + exp(-x (linear + cubic x^2))): SiLU, with 1 and 0, or the
// Gelu by a hyperbolic tangent (SplitFastGelu), with 2 sqrt(2 / pi) and 0.044715 times that (https://arxiv.org/abs/1606.08415).
//
// Shapes      X (N, S, 2H), Y (N, S, H); r counts the N * S rows; fp16 or fp32, computed in fp32, rounded once.
// Geometry    a thread owns a 16-byte column of each half and walks rows with a stride of the whole grid (rows/geometry.h).
// Registers   14 to 42 of a lane, no shared memory: eight blocks a compute unit on every GPU (REGISTERS.md).
// Roofline    6 bytes an output in fp16 (two reads, one write), about 8 flops: bandwidth-bound on every GPU.
// Measured    H200, 2026-11-28, fp16: 1x4128x10240 60.4 µs (101% of copy), 1x512x9728 9.0 µs (80% of copy); not measured on AMD
//             hardware.
#pragma once

#include "rows/rows.h"

namespace sdort::split_gate {

constexpr float kLog2E = 1.44269504f;

struct Args;

struct Problem {
    static constexpr const char* kName = "split_gate";
    using Args = split_gate::Args;
    const void* x;
    void* y;
    int64_t rows;   // N * S
    int64_t width;  // H, of the output
    float linear;
    float cubic;
};

struct Args : Problem, rows::Columns {};

}  // namespace sdort::split_gate
