#pragma once

#include <vector>

#include "driver/error.h"
#include "driver/launch.h"
#include "skip_layer_norm.h"

namespace sdort::skip_layer_norm {

struct Problem {
    const void* x;
    const void* skip;
    const void* gamma;
    const void* beta;
    const void* bias;
    void* y;
    void* sum;
    int64_t rows;
    int64_t skip_rows;
    int64_t width;
    float epsilon;
};

// "w<waves a row>v<vectors a lane>": every form that holds a row, the one with the fewest vectors a lane first, and among
// those the one with the fewest waves: a short chain of dependent work is worth more than full lanes.
inline std::vector<std::string> variants(const Problem& p, Dtype dtype, const Device& device) {
    const int64_t lanes = 16 / size_of(dtype);
    std::vector<std::string> found;
    if (p.width % lanes == 0)
        for (const int vectors : {1, 2, 3})
            for (const int waves : {1, 2, 4}) {
                const int64_t room = int64_t{waves} * device.wave * lanes;
                if (p.width <= vectors * room && p.width > (vectors - 1) * room)
                    found.push_back("w" + std::to_string(waves) + "v" + std::to_string(vectors));
            }
    if (found.empty()) found.push_back("wide");
    return found;
}

inline Launch launch(const Problem& p, Dtype dtype, const Device& device, const std::string& variant) {
    if (p.rows > UINT32_MAX - kThreads || p.width > UINT32_MAX / 2) throw Error("2^32 rows or more are not supported");
    const Args args{p.x, p.skip, p.gamma, p.beta, p.bias, p.y, p.sum, static_cast<uint32_t>(p.rows),
                    static_cast<uint32_t>(p.skip_rows), static_cast<uint32_t>(p.width), p.epsilon};
    const int waves = variant == "wide" ? 1 : variant[1] - '0';
    return make_launch(std::string("skip_layer_norm_") + suffix(dtype) + "_" + variant,
                       ceil_div(p.rows, kThreads / (waves * device.wave)), 1, kThreads, args);
}

}  // namespace sdort::skip_layer_norm
