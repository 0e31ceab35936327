// float16 and back over arrays, in integer arithmetic: GCC 12 makes vectors of it, which it does not of _Float16.
#pragma once

#include <bit>
#include <cstdint>
#include <cstring>

namespace sdort::cpu {

#define SDORT_FLATTEN __attribute__((always_inline)) inline

SDORT_FLATTEN float half_to_float(uint16_t half) {
    const uint32_t rest = (half & 0x7fffu) << 13, sign = (half & 0x8000u) << 16;
    // The exponent's bias is 15 in one and 127 in the other; the product also makes subnormal numbers normal.
    const uint32_t finite = std::bit_cast<uint32_t>(std::bit_cast<float>(rest) * 0x1p112f);
    return std::bit_cast<float>(sign | (rest >= 0x0f800000u ? rest | 0x7f800000u : finite));
}

// Rounds to nearest even; from 65520 on to infinity.
SDORT_FLATTEN uint16_t float_to_half(float value) {
    const uint32_t bits = std::bit_cast<uint32_t>(value), sign = bits >> 16 & 0x8000u, rest = bits & 0x7fffffffu;
    const uint32_t normal = (rest - 0x38000000u + 0xfffu + (rest >> 13 & 1u)) >> 13;
    // Adding 1/2 rounds to multiples of 2^-24, subnormal numbers' distance.
    const uint32_t small = std::bit_cast<uint32_t>(std::bit_cast<float>(rest) + 0.5f) - 0x3f000000u;
    const uint32_t huge = rest > 0x7f800000u ? 0x7e00u : 0x7c00u;
    const uint32_t finite = rest < 0x38800000u ? small : normal;
    return static_cast<uint16_t>(sign | (rest >= 0x47800000u ? huge : finite));
}

SDORT_FLATTEN void widen(const float* from, float* to, int64_t count) { std::memcpy(to, from, count * sizeof(float)); }
SDORT_FLATTEN void widen(const _Float16* from, float* to, int64_t count) {
    const uint16_t* const halves = reinterpret_cast<const uint16_t*>(from);
    for (int64_t i = 0; i < count; ++i) to[i] = half_to_float(halves[i]);
}

SDORT_FLATTEN void narrow(const float* from, float* to, int64_t count) { std::memcpy(to, from, count * sizeof(float)); }
SDORT_FLATTEN void narrow(const float* from, _Float16* to, int64_t count) {
    uint16_t* const halves = reinterpret_cast<uint16_t*>(to);
    for (int64_t i = 0; i < count; ++i) halves[i] = float_to_half(from[i]);
}

// What T keeps of a value.
template <class T>
SDORT_FLATTEN float rounded(float value) {
    if constexpr (sizeof(T) == 2) return half_to_float(float_to_half(value));
    return value;
}

}  // namespace sdort::cpu
