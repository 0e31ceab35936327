// gelu(x) = x * (1 + erf(x / sqrt 2)) / 2 in float32.
//
// Written as max(x, 0) - |x| * erfc(|x| / sqrt 2) / 2, nothing cancels: the second term is a product of positive numbers,
// and the relative error of its parts is the relative error of the tail. erfc(z) = exp(-z^2) * p(1 / (1 + P z)), with p
// fitted by scripts/fit_erfc.py (form: Hastings 1955, sheet 43): relative error 1.1e-7, half an ulp of float32 and a
// thousandth of one of float16.
#pragma once

#include "device.h"

namespace sdort {

SDORT_INLINE float gelu(float x) {
    const float a = fabsf(x);
    const float t = fast_rcp(fmaf(0.425f * 0.70710678f, a, 1.0f));
    float p = 7.247329650e-02f;
    p = fmaf(p, t, -3.173066030e-01f);
    p = fmaf(p, t, 4.147767769e-01f);
    p = fmaf(p, t, -1.098515585e-01f);
    p = fmaf(p, t, 2.585867114e-01f);
    p = fmaf(p, t, 1.996420787e-01f);
    p = fmaf(p, t, 2.420117780e-01f);
    p = fmaf(p, t, 2.396674089e-01f);
    // exp(-x^2 / 2) = 2^(-x^2 log2(e) / 2)
    const float tail = p * t * fast_exp2(x * x * -0.72134752f);
    return fmaf(-0.5f * a, tail, fmaxf(x, 0.0f));
}

}  // namespace sdort
