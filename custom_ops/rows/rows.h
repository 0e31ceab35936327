// What host and device code of operators over rows share.
#pragma once

#include <stdint.h>

namespace sdort::rows {

constexpr int kThreads = 256;  // of a block: eight waves of 32 hide the latency of memory

// Where threads own columns (rows/geometry.h).
struct Columns {
    int64_t vectors;          // of all rows
    uint32_t row_vectors;     // of one
    uint32_t stride_vectors;  // threads of the grid, rounded down to whole rows
};

}  // namespace sdort::rows
