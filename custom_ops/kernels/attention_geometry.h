#pragma once

#include <vector>

#include "attention.h"
#include "driver/error.h"
#include "driver/launch.h"

namespace sdort::attention {

inline constexpr int kGeneralWidths[] = {64, 192, 512};  // of Y that one workgroup of the general form computes
constexpr int kGeneralTile = 32, kGeneralBlock = 256;

inline std::vector<std::string> kernels(Dtype dtype) {
    std::vector<std::string> names;
    for (const int width : kGeneralWidths)
        names.push_back(std::string("attention_general_") + suffix(dtype) + "_" + std::to_string(width));
    return names;
}

inline Args arguments(const Problem& p) {
    constexpr double log2e = 1.44269504088896340736;
    return {p.q, p.k, p.v, p.bias, p.y, static_cast<int32_t>(p.heads), static_cast<int32_t>(p.queries),
            static_cast<int32_t>(p.keys), static_cast<int32_t>(p.size), static_cast<int32_t>(p.value_size), p.causal,
            static_cast<float>(p.scale * log2e), 1};
}

// The heads are the fastest dimension of the grid: on a GPU of eight dies, which take workgroups in turn, the tiles of one
// head meet in one die's cache (where the number of heads is a multiple of eight, as it mostly is).
inline Launch general(const Problem& p, Dtype dtype) {
    int width = 512;
    for (const int candidate : kGeneralWidths)
        if (p.value_size <= candidate) {
            width = candidate;
            break;
        }
    Args args = arguments(p);
    args.slices = static_cast<int32_t>(ceil_div(p.value_size, width));
    const std::string name = std::string("attention_general_") + suffix(dtype) + "_" + std::to_string(width);
    return make_launch(name, p.batches * p.heads, ceil_div(p.queries, kGeneralTile) * args.slices, kGeneralBlock, args);
}

inline std::vector<std::string> variants(const Problem&, Dtype, const Device&) { return {"general"}; }

inline Launch launch(const Problem& p, Dtype dtype, const Device&, const std::string& variant) {
    if (variant != "general") throw Error("there is no attention kernel '" + variant + "'");
    return general(p, dtype);
}

inline std::string key(const Problem& p, Dtype dtype) {
    return std::string("attention ") + suffix(dtype) + " n=" + std::to_string(p.batches) + " s=" + std::to_string(p.queries) +
           " l=" + std::to_string(p.keys) + " h=" + std::to_string(p.heads) + " d=" + std::to_string(p.size);
}

}  // namespace sdort::attention
