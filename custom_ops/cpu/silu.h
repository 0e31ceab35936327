// x / (1 + exp(-x)) in plain float arithmetic, so that a loop over it becomes vector code. Within 3 ulp of float32.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>

namespace sdort::cpu {

// exp(t) = 2^n * exp(r) with n = round(t / ln 2), |r| <= ln 2 / 2: there the Taylor polynomial of degree 7 is within
// r^8 / 8! < 6e-9. ln 2 comes in two parts, the first with trailing zeros so that n times it is exact.
__attribute__((always_inline)) inline float silu(float x) {
    constexpr float kRound = 12582912.0f;  // 1.5 * 2^23: adding it rounds to an integer, which is then in the low bits
    const float t = std::min(std::max(-x, -87.0f), 87.0f);
    const float shifted = t * 1.44269504f + kRound;
    const float n = shifted - kRound;
    const float r = (t - n * 0.693359375f) + n * 2.12194440e-4f;
    float p = 1.0f / 5040;
    p = p * r + 1.0f / 720;
    p = p * r + 1.0f / 120;
    p = p * r + 1.0f / 24;
    p = p * r + 1.0f / 6;
    p = p * r + 0.5f;
    p = p * r + 1.0f;
    p = p * r + 1.0f;
    const float power = std::bit_cast<float>((std::bit_cast<uint32_t>(shifted) << 23) + (127u << 23));
    return x / (1.0f + power * p);
}

}  // namespace sdort::cpu
