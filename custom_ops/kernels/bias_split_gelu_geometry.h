#pragma once

#include <algorithm>
#include <vector>

#include "bias_split_gelu.h"
#include "driver/error.h"
#include "driver/launch.h"

namespace sdort::bias_split_gelu {

struct Problem {
    const void* x;
    const void* bias;
    void* y;
    int64_t rows;   // N * S
    int64_t width;  // H, of the output
};

inline std::vector<std::string> variants(const Problem& p, Dtype dtype, const Device& device) {
    if (p.width % (16 / size_of(dtype)) != 0) return {"narrow"};
    if (device.architecture.rfind("sm_", 0) == 0) return {"r1", "r2", "r4"};
    return {"r2", "r1", "r4"};
}

// Eight blocks of 256 threads fill a multiprocessor, and a whole number of rows keeps a thread in its column.
inline Launch launch(const Problem& p, Dtype dtype, const Device& device, const std::string& variant) {
    if (p.rows > UINT32_MAX / 4 || p.width > UINT32_MAX / 16) throw Error("a tensor of 2^30 rows or more is not supported");
    const int64_t lanes = variant == "narrow" ? 1 : 16 / size_of(dtype);
    const int64_t columns = p.width / lanes;
    const int64_t threads = std::min<int64_t>(p.rows * columns, int64_t{8} * kThreads * device.compute_units);
    const int64_t stride = std::max<int64_t>(1, threads / columns);
    const Args args{p.x, p.bias, p.y, static_cast<uint32_t>(p.rows), static_cast<uint32_t>(columns),
                    static_cast<uint32_t>(stride)};
    return make_launch(std::string("bias_split_gelu_") + suffix(dtype) + "_" + variant, ceil_div(stride * columns, kThreads),
                       1, kThreads, args);
}

}  // namespace sdort::bias_split_gelu
