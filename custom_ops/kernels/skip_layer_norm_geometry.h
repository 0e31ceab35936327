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

// The fewest registers that hold a row: lanes beyond the row's end idle.
inline std::vector<std::string> variants(const Problem& p, Dtype dtype, const Device& device) {
    const int64_t lanes = 16 / size_of(dtype);
    if (p.width % lanes == 0)
        for (const int vectors : {1, 2, 3, 5, 10})
            if (p.width <= vectors * lanes * device.wave) return {"v" + std::to_string(vectors)};
    return {"wide"};
}

inline Launch launch(const Problem& p, Dtype dtype, const Device& device, const std::string& variant) {
    if (p.rows > UINT32_MAX - kThreads || p.width > UINT32_MAX / 2) throw Error("2^32 rows or more are not supported");
    const Args args{p.x, p.skip, p.gamma, p.beta, p.bias, p.y, p.sum, static_cast<uint32_t>(p.rows),
                    static_cast<uint32_t>(p.skip_rows), static_cast<uint32_t>(p.width), p.epsilon};
    return make_launch(std::string("skip_layer_norm_") + suffix(dtype) + "_" + variant,
                       ceil_div(p.rows, kThreads / device.wave), 1, kThreads, args);
}

}  // namespace sdort::skip_layer_norm
