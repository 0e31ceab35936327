// What host and device code of operators over rows share.
#pragma once

#include <stdint.h>

namespace sdort::rows {

constexpr int kThreads = 256;      // of a block: eight waves of 32 hide the latency of memory
constexpr int kHeldThreads = 128;  // where lanes hold rows: they all wait for the slowest load of a block's rows

// Lanes that hold a row, and vectors of each: the forms of rows/kernel.h's SDORT_HELD_KERNELS.
struct Held {
    int lanes, vectors;
};
constexpr Held kHeld[] = {{16, 3}, {16, 5}, {32, 1}, {32, 2}, {32, 3}, {32, 5}, {128, 1}, {128, 2}, {128, 3}, {128, 5}};

// Where threads own columns (rows/geometry.h).
struct Columns {
    int64_t vectors;          // of all rows
    uint32_t row_vectors;     // of one
    uint32_t stride_vectors;  // threads of the grid, rounded down to whole rows
};

}  // namespace sdort::rows
