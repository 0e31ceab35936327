#pragma once

#include "bias_add.h"
#include "rows/geometry.h"

namespace sdort::bias_add {

inline std::vector<std::string> variants(const Problem& p, Dtype dtype, const Device&) { return rows::column_variants(p, dtype); }

inline std::vector<Launch> launches(const Problem& p, Dtype dtype, const Device& device, const std::string& variant) {
    const Args args{p, rows::columns(p, dtype, device, variant)};
    return rows::launches(p, dtype, variant, rows::blocks_of(args), args);
}

}  // namespace sdort::bias_add
