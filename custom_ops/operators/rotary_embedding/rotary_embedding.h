// RotaryEmbedding: Y[a] = X[a] * cos - X[b] * sin, Y[b] = X[b] * cos + X[a] * sin for the pairs (a, b) of a head's elements.
// With a scale, of the head's root mean square norm: X / sqrt(mean(X^2) + epsilon) * scale.
//
// Shapes      X, Y (rows, 2C), a row for each token and head; scale (2C); cos, sin (table rows, C), token t reads row t modulo
//             the table rows; fp16 or fp32, computed in fp32, rounded once. Pairs are neighbours, or C apart.
// Geometry    4 to 32 lanes own a row, each 16 bytes of the cosines, of the sines, and the pairs that they turn: two vectors,
//             neighbours ("pairs_l8") or half a head apart ("halves_l8"). One pass over memory, and the norm's sum needs no
//             LDS and no barrier. A head of 128 is 8 lanes in fp16, so a block of 128 threads has 16 heads, which read the
//             same tables' rows. Heads that are wider, or that 16 bytes do not divide, are read twice by a wave
//             ("pairs_wide", "halves_wide").
// Registers   48 to 60 of a lane in fp16, 36 to 41 in fp32, 12 to 30 of the wide ones; no shared memory. Blocks a compute unit
//             at least: sixteen on AMD GPUs, nine on NVIDIA (REGISTERS.md).
// Roofline    4 bytes an element in fp16 (read 1, write 1), and the tables once, 2 / heads of that; about 3 flops, 7 with the
//             norm: bandwidth-bound.
// Measured    H200, 2026-11-28, fp16: 1x4608 24x128 15.1 µs (92% of copy), 1x512 32x128 halves 4.0 µs (51% of copy); not measured on
//             AMD hardware.
#pragma once

#include "rows/rows.h"

namespace sdort::rotary_embedding {

struct Tensors {
    const void* x;
    const void* cos;
    const void* sin;
    const void* scale;  // or null: no norm
    void* y;
};

struct Problem : Tensors {
    static constexpr const char* kName = "rotary_embedding";
    int64_t rows;  // tokens * heads
    int64_t heads;
    int64_t table_rows;
    int64_t width;  // C, half a head
    int64_t interleaved;
    float epsilon;
};

struct Args : Tensors {
    uint32_t rows;
    uint32_t heads;
    uint32_t table_rows;
    uint32_t width;
    float epsilon;
};

}  // namespace sdort::rotary_embedding
