// Row operators on the CPU: each call computes rows [first, first + count) of float32 or float16 tensors, in float32.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "driver/launch.h"

namespace sdort::cpu {

// Rows of `width` elements that make a task of some ten microseconds: large enough for a thread pool, small enough to share.
inline int64_t rows_per_task(int64_t width) { return std::max<int64_t>(1, 32768 / std::max<int64_t>(1, width)); }

struct BiasSplitGelu {
    const void* x;     // rows of 2 * width
    const void* bias;  // 2 * width
    void* y;           // rows of width
    int64_t width;
};
void bias_split_gelu(const BiasSplitGelu& args, Dtype dtype, int64_t first, int64_t count);

struct SkipLayerNorm {
    const void* x;
    const void* skip;
    int64_t skip_rows;  // rows of skip; row r reads row r % skip_rows
    const void* gamma;
    const void* beta;   // or null
    const void* bias;   // or null
    void* y;
    void* sum;          // x + skip + bias, or null
    int64_t width;
    float epsilon;
};
void skip_layer_norm(const SkipLayerNorm& args, Dtype dtype, int64_t first, int64_t count);

}  // namespace sdort::cpu
