// Layer normalization of rows on the CPU, for the operators over rows that end with one.
#pragma once

#include <cmath>
#include <cstdint>
#include <type_traits>
#include <vector>

#include "convert.h"
#include "math.h"

namespace sdort::cpu {

// 32 partial sums: vectors without licence to reorder additions, four of them at a time as an addition takes four cycles, and
// less rounding than one sum.
template <class Term>
SDORT_CPU_INLINE float sum(int64_t count, Term term) {
    constexpr int kParts = 32;
    float parts[kParts] = {};
    int64_t i = 0;
    for (; i + kParts <= count; i += kParts)
        for (int k = 0; k < kParts; ++k) parts[k] += term(i + k);
    for (; i < count; ++i) parts[i % kParts] += term(i);
    for (int half = kParts / 2; half > 0; half /= 2)
        for (int k = 0; k < half; ++k) parts[k] += parts[k + half];
    return parts[0];
}

// The row in float32: as it is, or in `room`.
SDORT_CPU_INLINE const float* widened(const float* row, float*, int64_t) { return row; }
SDORT_CPU_INLINE const float* widened(const _Float16* row, float* room, int64_t count) {
    widen(row, room, count);
    return room;
}

// Gamma, beta (or null) and epsilon of a problem of rows, and room for one row in float32.
template <class T>
struct Normalizer {
    int64_t width;
    float epsilon;
    std::vector<float> gamma, beta, room;

    template <class Problem>
    SDORT_CPU_INLINE explicit Normalizer(const Problem& p)
        : width(p.width), epsilon(p.epsilon), gamma(p.width), beta(p.width), room(p.width) {
        widen(static_cast<const T*>(p.gamma), gamma.data(), width);
        if (p.beta) widen(static_cast<const T*>(p.beta), beta.data(), width);
    }

    // `values` may be the room.
    SDORT_CPU_INLINE void operator()(const float* values, T* y) {
        const float mean = sum(width, [&](int64_t i) { return values[i]; }) / static_cast<float>(width);
        const float variance =
            sum(width, [&](int64_t i) { return (values[i] - mean) * (values[i] - mean); }) / static_cast<float>(width);
        const float scale = 1.0f / std::sqrt(variance + epsilon);
        const float *const by = gamma.data(), *const shift = beta.data();
        if constexpr (std::is_same_v<T, float>) {
            for (int64_t i = 0; i < width; ++i) y[i] = (values[i] - mean) * scale * by[i] + shift[i];
        } else {
            float* const out = room.data();
            for (int64_t i = 0; i < width; ++i) out[i] = (values[i] - mean) * scale * by[i] + shift[i];
            narrow(out, y, width);
        }
    }
};

}  // namespace sdort::cpu
