// What the manuals' pseudo-code computes with: a register's bits in every type, and its functions.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>

namespace emulator {

template <class To, class From>
inline To bits_as(From from) {
    static_assert(sizeof(To) == sizeof(From));
    To to;
    std::memcpy(&to, &from, sizeof to);
    return to;
}

inline float widen(uint16_t half) {
    const uint32_t sign = (half & 0x8000u) << 16, exponent = half >> 10 & 31, mantissa = half & 0x3ff;
    if (exponent == 31) return bits_as<float>(sign | 0x7f800000 | mantissa << 13);
    if (exponent) return bits_as<float>(sign | (exponent + 112) << 23 | mantissa << 13);
    const float magnitude = static_cast<float>(mantissa) * 0x1p-24f;
    return sign ? -magnitude : magnitude;
}

// To the nearest, ties to even, subnormal results kept; a NaN becomes quiet.
inline uint16_t narrow(float value) {
    const uint32_t all = bits_as<uint32_t>(value), sign = all >> 16 & 0x8000, magnitude = all & 0x7fffffff;
    if (magnitude > 0x7f800000) return static_cast<uint16_t>(sign | 0x7e00 | (magnitude >> 13 & 0x3ff));
    if (magnitude >= 0x47800000) return static_cast<uint16_t>(sign | 0x7c00);
    if (magnitude < 0x38800000) {  // the sum's unit in the last place is the smallest half
        const float sum = bits_as<float>(magnitude) + 0.5f;
        return static_cast<uint16_t>(sign | (bits_as<uint32_t>(sum) - 0x3f000000));
    }
    const uint32_t rounded = magnitude + 0xfff + (magnitude >> 13 & 1) - 0x38000000;
    return static_cast<uint16_t>(sign | rounded >> 13);
}

struct Half {
    uint16_t bits;
    operator float() const { return widen(bits); }
    Half& operator=(float value) {
        bits = narrow(value);
        return *this;
    }
};

union Value {
    uint64_t u64, b64;
    int64_t i64;
    double f64;
    uint32_t u32, b32;
    int32_t i32;
    float f32;
    uint16_t u16, b16;
    int16_t i16;
    Half f16;
    uint8_t u8, b8;
    int8_t i8;
    struct {
        uint32_t u24 : 24;
    };
    struct {
        int32_t i24 : 24;
    };
    bool u1;
};

inline Value value(uint64_t x) { Value v; v.u64 = x; return v; }
inline Value value(int64_t x) { Value v; v.i64 = x; return v; }
inline Value value(uint32_t x) { Value v; v.u64 = x; return v; }
inline Value value(int32_t x) { Value v; v.u64 = 0; v.i32 = x; return v; }
inline Value value(float x) { Value v; v.u64 = 0; v.f32 = x; return v; }
inline Value value(double x) { Value v; v.f64 = x; return v; }

inline uint64_t bits(uint64_t x, int high, int low) { return x >> low & (~0ull >> (63 - (high - low))); }
inline uint64_t bits(const Value& x, int high, int low) { return bits(x.u64, high, low); }
inline uint64_t concatenated(uint32_t high, uint32_t low) { return static_cast<uint64_t>(high) << 32 | low; }

inline int64_t signext(int64_t x) { return x; }
inline int64_t signext_from_bit(int64_t x, uint64_t width) {
    return width == 0 ? 0 : width >= 64 ? x : static_cast<int64_t>(static_cast<uint64_t>(x) << (64 - width)) >> (64 - width);
}

inline float fma(float a, float b, float c) { return std::fma(a, b, c); }
inline double fma(double a, double b, double c) { return std::fma(a, b, c); }
inline float floor(float x) { return std::floor(x); }
inline double floor(double x) { return std::floor(x); }
inline float trunc(float x) { return std::trunc(x); }
inline double trunc(double x) { return std::trunc(x); }
template <class T>
inline T abs(T x) { return x < 0 ? -x : x; }
inline float abs(float x) { return std::fabs(x); }

inline float f16_to_f32(Half x) { return x; }
inline float f32_to_f16(float x) { return x; }  // the assignment rounds
inline float i32_to_f32(int32_t x) { return static_cast<float>(x); }
inline float u32_to_f32(uint32_t x) { return static_cast<float>(x); }
inline uint32_t f32_to_u32(float x) {  // towards zero; NaN is 0
    return !(x > 0) ? 0 : x >= 4294967296.0f ? ~0u : static_cast<uint32_t>(x);
}
inline int32_t f32_to_i32(float x) {
    if (x != x) return 0;
    return x >= 2147483648.0f ? 0x7fffffff : x <= -2147483648.0f ? static_cast<int32_t>(0x80000000) : static_cast<int32_t>(x);
}

inline int exponent(float x) { return static_cast<int>(bits_as<uint32_t>(x) >> 23 & 255); }
inline bool sign(float x) { return std::signbit(x); }
inline bool is_subnormal(float x) { return exponent(x) == 0 && x != 0; }
inline bool is_signalling(float x) { return x != x && !(bits_as<uint32_t>(x) & 0x400000); }
inline float quiet(float x) { return bits_as<float>(bits_as<uint32_t>(x) | 0x400000); }
inline float flushed(float x) { return is_subnormal(x) ? std::copysign(0.0f, x) : x; }

// Transcendental functions: computed in double and rounded, within the one ulp of the hardware's; without subnormals.
template <class Function>
inline float transcendental(float x, Function function) {
    return flushed(static_cast<float>(function(static_cast<double>(flushed(x)))));
}

template <bool Max>
inline float extreme(float a, float b, bool ieee) {
    if (ieee && is_signalling(a)) return quiet(a);
    if (ieee && is_signalling(b)) return quiet(b);
    if (a != a) return b;
    if (b != b) return a;
    if (a == b) return sign(a) == Max ? b : a;  // +0 is more than -0
    return (a > b) == Max ? a : b;
}

// The three steps of an IEEE division around v_rcp_f32 (RDNA3 ISA, V_DIV_SCALE_F32 to V_DIV_FIXUP_F32), where the manual's
// pseudo-code would not make one mended so that they do: a denominator whose reciprocal and quotient are subnormal is
// scaled by 2**-64 (not 2**64, which overflows), V_DIV_FMAS_F32 undoes what was scaled by 2**64, as the quotient's size
// tells (not 2**32), and a quotient of two numbers that came out as NaN is too large.
inline float div_scale(float s0, float s1, float s2, bool& scaled) {
    scaled = false;
    if (s1 == 0 || s2 == 0) return std::numeric_limits<float>::quiet_NaN();
    const bool denominator = bits_as<uint32_t>(s0) == bits_as<uint32_t>(s1);
    const bool numerator = bits_as<uint32_t>(s0) == bits_as<uint32_t>(s2);
    const bool reciprocal = std::fabs(1.0 / s1) < 0x1p-126;
    const bool quotient = std::fabs(static_cast<double>(s2) / s1) < 0x1p-126;
    if (exponent(s2) - exponent(s1) >= 96) {
        scaled = true;
        return denominator ? std::ldexp(s0, 64) : s0;
    }
    if (is_subnormal(s1)) return std::ldexp(s0, 64);
    if (reciprocal && quotient) {
        scaled = true;
        return denominator ? std::ldexp(s0, -64) : s0;
    }
    if (reciprocal) return std::ldexp(s0, -64);
    if (quotient) {
        scaled = true;
        return numerator ? std::ldexp(s0, 64) : s0;
    }
    return exponent(s2) <= 23 ? std::ldexp(s0, 64) : s0;
}

inline float div_fmas(float s0, float s1, float s2, bool scaled) {
    const float sum = std::fma(s0, s1, s2);
    return scaled ? std::ldexp(sum, exponent(s2) > 127 ? 64 : -64) : sum;
}

inline float div_fixup(float s0, float s1, float s2) {
    const bool negative = sign(s1) != sign(s2);
    const float infinity = std::numeric_limits<float>::infinity();
    if (s2 != s2) return quiet(s2);
    if (s1 != s1) return quiet(s1);
    if ((s1 == 0 && s2 == 0) || (std::isinf(s1) && std::isinf(s2))) return bits_as<float>(0xffc00000u);
    if (s1 == 0 || std::isinf(s2)) return negative ? -infinity : infinity;
    if (std::isinf(s1) || s2 == 0) return negative ? -0.0f : 0.0f;
    if (exponent(s2) - exponent(s1) < -150) return negative ? -0.0f : 0.0f;
    const float quotient = s0 != s0 ? infinity : std::fabs(s0);
    return negative ? -quotient : quotient;
}

// A byte of the eight in data, or a sign of one, or a constant (V_PERM_B32).
inline uint32_t permuted_byte(uint64_t data, uint32_t select) {
    if (select >= 13) return 0xff;
    if (select == 12) return 0;
    if (select >= 8) return data >> (16 * (select - 8) + 15) & 1 ? 0xff : 0;
    return data >> 8 * select & 0xff;
}

inline uint32_t permuted(uint64_t data, uint32_t select) {
    uint32_t out = 0;
    for (int byte = 0; byte < 4; ++byte) out |= permuted_byte(data, select >> 8 * byte & 0xff) << 8 * byte;
    return out;
}

// Bit by bit what a table of eight says of the three bits, a's the highest (V_BITOP3_B32).
inline uint32_t looked_up(uint32_t a, uint32_t b, uint32_t c, uint32_t table) {
    uint32_t out = 0;
    for (int entry = 0; entry < 8; ++entry)
        if (table >> entry & 1) out |= (entry & 4 ? a : ~a) & (entry & 2 ? b : ~b) & (entry & 1 ? c : ~c);
    return out;
}

inline uint32_t reversed(uint32_t x) {
    uint32_t out = 0;
    for (int i = 0; i < 32; ++i) out |= (x >> i & 1) << (31 - i);
    return out;
}

}  // namespace emulator
