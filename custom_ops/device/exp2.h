// 2^x by multiplications and additions, for kernels that keep the unit of exponentials busy.
//
// x is split into the nearest whole number, which becomes the exponent, and a fraction in [-1/2, 1/2] (Cody and Waite,
// "Software Manual for the Elementary Functions", 1980), whose power is a polynomial, fitted by scripts/fit_exp2.py: relative
// error 1.01e-4, less than half of what rounding to float16 may add. A softmax of which a share is computed so is in
// FlashAttention-4. Six instructions more than the other form: on NVIDIA GPUs a fused multiply-add saturates for nothing.
#pragma once

#include "device.h"

namespace sdort {

// 2^(value * factor - from), of which what is below 2^-127, or NaN, is zero, and what is above 2^17, more than float16 holds, is
// 2^17.
SDORT_INLINE float polynomial_exp2(float value, float factor, float from) {
    constexpr float kLowest = -127.0f, kRange = 17.0f - kLowest, kShare = 1.0f / kRange;
    constexpr float kWhole = 12582912.0f + kLowest;  // 1.5 * 2^23: what is added to it is rounded to a whole number
    const float inside = fminf(fmaxf(fmaf(value, factor * kShare, fmaf(from, -kShare, -kLowest * kShare)), 0.0f), 1.0f);
    const float whole = fmaf(inside, kRange, kWhole);
    const float fraction = fmaf(inside, kRange, kWhole - whole);
    float p = 5.500893117e-02f;
    p = fmaf(p, fraction, 2.422109593e-01f);
    p = fmaf(p, fraction, 6.932829271e-01f);
    p = fmaf(p, fraction, 1.0f);
    return real(static_cast<int>(static_cast<uint32_t>(bits(p)) + (static_cast<uint32_t>(bits(whole)) << 23)));
}

}  // namespace sdort
