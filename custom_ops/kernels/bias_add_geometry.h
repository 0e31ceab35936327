#pragma once

#include <algorithm>

#include "bias_add.h"
#include "driver/launch.h"

namespace sdort::bias_add {

struct Problem {
    const void* x;
    const void* bias;
    const void* skip;
    void* y;
    int64_t rows;      // N * S
    int64_t channels;  // C
};

inline const char* variant(const Problem& p, Dtype dtype) {
    return p.channels % (16 / size_of(dtype)) == 0 ? "vector" : "narrow";
}

// Enough blocks to fill the device eight times; beyond that a block walks on, with its bias loaded.
inline Launch geometry(const Problem& p, Dtype dtype, const Device& device) {
    const std::string name = variant(p, dtype);
    const int64_t row = p.channels / (name == "narrow" ? 1 : 16 / size_of(dtype));
    const int64_t vectors = p.rows * row;
    const int64_t blocks = std::min<int64_t>(ceil_div(vectors, kThreads), 8 * device.compute_units);
    // A whole number of rows, so that a thread meets the same channels in every row; at least one row.
    const int64_t rows = std::max<int64_t>(1, blocks * kThreads / row);
    const Args args{p.x, p.bias, p.skip, p.y, vectors, static_cast<uint32_t>(row), static_cast<uint32_t>(rows * row)};
    return make_launch(std::string("bias_add_") + suffix(dtype) + "_" + name, ceil_div(rows * row, kThreads), 1, kThreads,
                       args);
}

}  // namespace sdort::bias_add
