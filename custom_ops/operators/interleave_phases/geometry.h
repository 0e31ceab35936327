#pragma once

#include "interleave_phases.h"
#include "rows/geometry.h"

namespace sdort::interleave_phases {

inline std::vector<std::string> variants(const Problem& p, Dtype dtype, const Device&) {
    if (p.width % rows::lanes_of(dtype) != 0) return {"narrow"};
    return {"p2", "p4"};
}

// As many blocks a row as its pixels fill; a whole number of pixels keeps a thread in its column.
inline std::vector<Launch> launches(const Problem& p, Dtype dtype, const Device&, const std::string& variant) {
    const int64_t rows = p.rows / p.image_width;
    if (rows > INT32_MAX || p.image_width * p.width > INT32_MAX) throw Error("an image of 2^31 elements a row is not supported");
    const int64_t columns = p.width / (variant == "narrow" ? 1 : rows::lanes_of(dtype));
    const int64_t pixels = variant == "narrow" ? 1 : variant[1] - '0';
    const int64_t threads = std::max(columns, ceil_div(p.image_width, pixels) * columns);
    const int64_t blocks = std::min<int64_t>(ceil_div(threads, rows::kThreads), 65535);
    const int64_t stride = std::max<int64_t>(1, blocks * rows::kThreads / columns);
    const Args args{p, static_cast<uint32_t>(p.height), static_cast<uint32_t>(p.image_width), static_cast<uint32_t>(columns),
                    static_cast<uint32_t>(stride)};
    return {make_launch(std::string(p.kName) + "_" + suffix(dtype) + "_" + variant, static_cast<uint32_t>(rows),
                        static_cast<uint32_t>(ceil_div(stride * columns, rows::kThreads)), rows::kThreads, args)};
}

}  // namespace sdort::interleave_phases
