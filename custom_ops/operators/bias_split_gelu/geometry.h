#pragma once

#include "bias_split_gelu.h"
#include "rows/geometry.h"

namespace sdort::bias_split_gelu {

inline std::vector<std::string> variants(const Problem& p, Dtype dtype, const Device& device) {
    if (p.width % rows::lanes_of(dtype) != 0) return {"narrow"};
    if (device.architecture.rfind("sm_", 0) == 0) return {"r1", "r2", "r4"};
    return {"r2", "r1", "r4"};
}

// A whole number of rows keeps a thread in its column. Eight blocks of 256 threads fill a multiprocessor, and go on with
// further rows; on NVIDIA a thread for each place is up to a tenth faster (custom_ops/MEASURED.md).
inline std::vector<Launch> launches(const Problem& p, Dtype dtype, const Device& device, const std::string& variant) {
    if (p.rows > UINT32_MAX / 4 || p.width > UINT32_MAX / 16) throw Error("a tensor of 2^30 rows or more is not supported");
    const int64_t columns = p.width / (variant == "narrow" ? 1 : rows::lanes_of(dtype));
    const bool one_each = variant == "r1" && device.architecture.rfind("sm_", 0) == 0;
    const int64_t most = one_each ? int64_t{1} << 31 : int64_t{8} * rows::kThreads * device.compute_units;
    const int64_t threads = std::min<int64_t>(p.rows * columns, most);
    const int64_t stride = std::max<int64_t>(1, threads / columns);
    const Args args{p, static_cast<uint32_t>(p.rows), static_cast<uint32_t>(columns), static_cast<uint32_t>(stride)};
    return rows::launches(p, dtype, variant, ceil_div(stride * columns, rows::kThreads), args);
}

}  // namespace sdort::bias_split_gelu
