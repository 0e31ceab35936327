#pragma once

#include "device/device.h"

namespace sdort::group_norm {

constexpr float kLog2e = 1.44269504088896340736f;

SDORT_INLINE float silu(float x) { return x * fast_rcp(1.0f + fast_exp2(-kLog2e * x)); }

// Of two at a time with one reciprocal, r = 1 / (a * b), a^-1 = b * r, b^-1 = a * r: exponentials and reciprocals have a
// quarter of the throughput or less on every GPU, and bound the kernel otherwise. Below x = -41 the sigmoid stays 2^-60, so
// that the product is finite; x times it is far below fp16's smallest number. A NaN stays with its own value.
SDORT_INLINE void silu_pair(float& x, float& y) {
    constexpr float kLargest = 1152921504606846976.0f;  // 2^60
    const float a = 1.0f + fminf(fast_exp2(-kLog2e * x), kLargest), b = 1.0f + fminf(fast_exp2(-kLog2e * y), kLargest);
    const float inverse = fast_rcp(a * b);
    x *= b * inverse;
    y *= a * inverse;
}

SDORT_INLINE void activate(float (&values)[4]) {
#pragma unroll
    for (int i = 0; i < 4; ++i) values[i] = silu(values[i]);
}
SDORT_INLINE void activate(float (&values)[8]) {
#pragma unroll
    for (int i = 0; i < 8; i += 2) silu_pair(values[i], values[i + 1]);
}

}  // namespace sdort::group_norm
