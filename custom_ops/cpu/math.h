// Functions that compilers vectorise: no calls, no branches. float32, relative error about 2e-7.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>

namespace sdort::cpu {

#define SDORT_CPU_INLINE __attribute__((always_inline)) inline

// 2^x for x in [-126, 126]; smaller x give 2^-126, of the size of nothing. Taylor's series on [-1/2, 1/2].
SDORT_CPU_INLINE float exp2(float x) {
    x = std::min(std::max(x, -126.0f), 126.0f);
    const float whole = static_cast<float>(static_cast<int32_t>(x + (x < 0.0f ? -0.5f : 0.5f)));
    const float r = (x - whole) * 0.693147181f;
    float p = 1.0f / 5040.0f;
    p = p * r + 1.0f / 720.0f;
    p = p * r + 1.0f / 120.0f;
    p = p * r + 1.0f / 24.0f;
    p = p * r + 1.0f / 6.0f;
    p = p * r + 0.5f;
    p = p * r + 1.0f;
    p = p * r + 1.0f;
    return p * std::bit_cast<float>((static_cast<int32_t>(whole) + 127) << 23);
}

// As device/gelu.h computes it.
SDORT_CPU_INLINE float gelu(float x) {
    const float a = x < 0.0f ? -x : x;
    const float t = 1.0f / (0.425f * 0.70710678f * a + 1.0f);
    float p = 7.247329650e-02f;
    p = p * t - 3.173066030e-01f;
    p = p * t + 4.147767769e-01f;
    p = p * t - 1.098515585e-01f;
    p = p * t + 2.585867114e-01f;
    p = p * t + 1.996420787e-01f;
    p = p * t + 2.420117780e-01f;
    p = p * t + 2.396674089e-01f;
    return std::max(x, 0.0f) - 0.5f * a * p * t * exp2(x * x * -0.72134752f);
}

}  // namespace sdort::cpu
