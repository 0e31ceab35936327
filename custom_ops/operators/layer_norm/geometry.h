#pragma once

#include "layer_norm.h"
#include "rows/geometry.h"

namespace sdort::layer_norm {

inline std::vector<std::string> variants(const Problem& p, Dtype dtype, const Device& device) {
    return rows::held_variants(p, dtype, device);
}

inline std::vector<Launch> launches(const Problem& p, Dtype dtype, const Device& device, const std::string& variant) {
    const int64_t blocks = rows::held_blocks(p, device, variant);
    const Args args{p, static_cast<uint32_t>(p.rows), static_cast<uint32_t>(p.width), p.epsilon};
    return rows::launches(p, dtype, variant, blocks, args, rows::kHeldThreads);
}

}  // namespace sdort::layer_norm
