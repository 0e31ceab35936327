#pragma once

#include "modulated_norm.h"
#include "rows/geometry.h"

namespace sdort::modulated_norm {

inline std::string key(const Problem& p, Dtype dtype) {
    return std::string(p.kName) + " " + suffix(dtype) + " rows=" + std::to_string(p.rows) + " width=" + std::to_string(p.width) +
           " gated=" + std::to_string(p.branch != nullptr) + " factor=" + std::to_string(p.factor != nullptr) +
           " rms=" + std::to_string(p.rms != 0) + " outputs=" + std::to_string(p.y2 ? 2 : 1);
}

inline std::vector<std::string> variants(const Problem& p, Dtype dtype, const Device& device) {
    return rows::held_variants(p, dtype, device);
}

inline std::vector<Launch> launches(const Problem& p, Dtype dtype, const Device& device, const std::string& variant) {
    const int64_t blocks = rows::held_blocks(p, device, variant);
    const Args args{p, static_cast<uint32_t>(p.rows), static_cast<uint32_t>(p.image_rows), static_cast<uint32_t>(p.width),
                    p.rms != 0, p.epsilon, p.branch_epsilon};
    return rows::launches(p, dtype, variant, blocks, args, rows::kHeldThreads);
}

}  // namespace sdort::modulated_norm
