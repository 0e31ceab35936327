#pragma once

#include "rotary_embedding.h"
#include "rows/geometry.h"

namespace sdort::rotary_embedding {

inline std::string key(const Problem& p, Dtype dtype) {
    return std::string(p.kName) + " " + suffix(dtype) + " rows=" + std::to_string(p.rows) + " width=" + std::to_string(p.width) +
           " interleaved=" + std::to_string(p.interleaved) + " norm=" + std::to_string(p.scale != nullptr);
}

// The fewest lanes that hold a row; 0 where none do.
inline int64_t lanes(const Problem& p, Dtype dtype) {
    if (p.width % rows::lanes_of(dtype) != 0) return 0;
    for (const int64_t lanes : {4, 8, 16, 32})
        if (p.width <= lanes * rows::lanes_of(dtype)) return lanes;
    return 0;
}

inline std::vector<std::string> variants(const Problem& p, Dtype dtype, const Device&) {
    const int64_t of_row = lanes(p, dtype);
    return {(p.interleaved ? "pairs_" : "halves_") + (of_row ? "l" + std::to_string(of_row) : std::string("wide"))};
}

inline std::vector<Launch> launches(const Problem& p, Dtype dtype, const Device& device, const std::string& variant) {
    if (p.rows > UINT32_MAX - rows::kHeldThreads || p.width > UINT32_MAX / 4) throw Error("2^32 rows or more are not supported");
    const int64_t of_row = lanes(p, dtype);
    const int64_t blocks = ceil_div(p.rows, rows::kHeldThreads / (of_row ? of_row : device.wave));
    const Args args{p, static_cast<uint32_t>(p.rows), static_cast<uint32_t>(p.heads), static_cast<uint32_t>(p.table_rows),
                    static_cast<uint32_t>(p.width), p.epsilon};
    return rows::launches(p, dtype, variant, blocks, args, rows::kHeldThreads);
}

}  // namespace sdort::rotary_embedding
