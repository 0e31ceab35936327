// Arithmetic that the manuals' pseudo-code leaves out, gets wrong, or says in more words than it takes. All other
// arithmetic is translated from the pseudo-code (tests/emulator/translate.py).
#pragma once

#include "vector.h"

namespace emulator::own {

inline uint32_t saturated(int64_t x, bool clamp) {
    if (!clamp) return static_cast<uint32_t>(x);
    return x < 0 ? 0 : x > 0xffffffffll ? ~0u : static_cast<uint32_t>(x);
}

EMULATOR_VECTOR_CLAMPED(V_ADD_NC_U32, true, D0.u32 = saturated(int64_t{S0.u32} + S1.u32, C.clamp);)
EMULATOR_VECTOR_CLAMPED(V_SUB_NC_U32, true, D0.u32 = saturated(int64_t{S0.u32} - S1.u32, C.clamp);)
EMULATOR_VECTOR_CLAMPED(V_SUBREV_NC_U32, true, D0.u32 = saturated(int64_t{S1.u32} - S0.u32, C.clamp);)
EMULATOR_VECTOR(V_BFREV_B32, D0.u32 = reversed(S0.u32);)
EMULATOR_VECTOR(V_PERM_B32, D0.u32 = permuted(concatenated(S0.u32, S1.u32), S2.u32);)
EMULATOR_VECTOR(V_PACK_B32_F16, D0.u32 = S0.u16 | static_cast<uint32_t>(S1.u16) << 16;)
EMULATOR_VECTOR(V_CVT_PK_F16_F32, D0.u32 = narrow(S0.f32) | static_cast<uint32_t>(narrow(S1.f32)) << 16;)
EMULATOR_VECTOR(V_BITOP3_B32, D0.u32 = looked_up(S0.u32, S1.u32, S2.u32, C.immediate.u32);)
EMULATOR_VECTOR(V_MOV_B64, D0.u64 = S0.u64;)
EMULATOR_VECTOR(V_MBCNT_LO_U32_B32,
                D0.u32 = S1.u32 + __builtin_popcount(S0.u32 & static_cast<uint32_t>((1ull << C.lane) - 1));)
EMULATOR_VECTOR(V_MBCNT_HI_U32_B32,
                D0.u32 = S1.u32 + __builtin_popcount(S0.u32 & static_cast<uint32_t>(((1ull << C.lane) - 1) >> 32));)
EMULATOR_VECTOR(V_MAD_U64_U32, const unsigned __int128 sum = static_cast<unsigned __int128>(S0.u32) * S1.u32 + S2.u64;
                D0.u64 = static_cast<uint64_t>(sum); C.result = (sum >> 64) != 0;)
EMULATOR_VECTOR(V_MAD_I64_I32, const __int128 sum = static_cast<__int128>(S0.i32) * S1.i32 + S2.i64;
                D0.i64 = static_cast<int64_t>(sum); C.result = sum >> 64 & 1;)

// Multiply and add with a rounding between (V_MAC_F32 has no subnormals: LLVM, FeatureMadMacF32Insts).
EMULATOR_VECTOR(V_MAC_F32, const float product = flushed(flushed(S0.f32) * flushed(S1.f32));
                D0.f32 = flushed(product + flushed(D0.f32));)

EMULATOR_VECTOR(V_MAX_F32, D0.f32 = extreme<true>(S0.f32, S1.f32, C.ieee);)
EMULATOR_VECTOR(V_MIN_F32, D0.f32 = extreme<false>(S0.f32, S1.f32, C.ieee);)
EMULATOR_VECTOR(V_MAX3_F32, D0.f32 = extreme<true>(extreme<true>(S0.f32, S1.f32, C.ieee), S2.f32, C.ieee);)
EMULATOR_VECTOR(V_MIN3_F32, D0.f32 = extreme<false>(extreme<false>(S0.f32, S1.f32, C.ieee), S2.f32, C.ieee);)
EMULATOR_VECTOR(V_MAX_NUM_F32, D0.f32 = extreme<true>(S0.f32, S1.f32, false);)
EMULATOR_VECTOR(V_MIN_NUM_F32, D0.f32 = extreme<false>(S0.f32, S1.f32, false);)
EMULATOR_VECTOR(V_MAX3_NUM_F32, D0.f32 = extreme<true>(extreme<true>(S0.f32, S1.f32, false), S2.f32, false);)
EMULATOR_VECTOR(V_MIN3_NUM_F32, D0.f32 = extreme<false>(extreme<false>(S0.f32, S1.f32, false), S2.f32, false);)

EMULATOR_VECTOR(V_DIV_SCALE_F32, D0.f32 = div_scale(S0.f32, S1.f32, S2.f32, C.result);)
EMULATOR_VECTOR(V_DIV_FMAS_F32, D0.f32 = div_fmas(S0.f32, S1.f32, S2.f32, C.carry);)
EMULATOR_VECTOR(V_DIV_FIXUP_F32, D0.f32 = div_fixup(S0.f32, S1.f32, S2.f32);)

EMULATOR_VECTOR(V_CEIL_F32, D0.f32 = std::ceil(S0.f32);)
EMULATOR_VECTOR(V_EXP_F32, D0.f32 = transcendental(S0.f32, [](double x) { return std::exp2(x); });)
EMULATOR_VECTOR(V_LOG_F32, D0.f32 = transcendental(S0.f32, [](double x) { return std::log2(x); });)
EMULATOR_VECTOR(V_RCP_F32, D0.f32 = transcendental(S0.f32, [](double x) { return 1 / x; });)
EMULATOR_VECTOR(V_RSQ_F32, D0.f32 = transcendental(S0.f32, [](double x) { return 1 / std::sqrt(x); });)
EMULATOR_VECTOR(V_SQRT_F32, D0.f32 = transcendental(S0.f32, [](double x) { return std::sqrt(x); });)
EMULATOR_SCALAR(V_S_RCP_F32, false, D0.f32 = transcendental(S0.f32, [](double x) { return 1 / x; });)

EMULATOR_SCALAR(S_BCNT1_I32_B32, false, D0.u32 = __builtin_popcount(S0.u32); SCC = D0.u32 != 0;)
EMULATOR_SCALAR(S_BCNT1_I32_B64, false, D0.u32 = __builtin_popcountll(S0.u64); SCC = D0.u32 != 0;)
EMULATOR_SCALAR(S_BFE_I64, false,
                D0.i64 = signext_from_bit(S0.i64 >> (S1.u32 & 63), S1.u32 >> 16 & 127); SCC = D0.i64 != 0;)

// v_fma_mix: each source is a float (op_sel_hi 0) or a half of its register; the result is a float or one half.
inline void fma_mix(Wave& w, const Instruction& i) {
    Source s[3];
    uint64_t writes = w.exec();
    Instruction plain = i;
    plain.neg = plain.abs = plain.opsel = 0;  // modifiers apply to what a source is taken as; neg_hi is |x|
    for (int n = 0; n < 3; ++n) {
        const bool constant = i.src[n] > 128 && i.src[n] < kLiteral;  // 0 is 0 of any width
        if (constant && i.opsel_hi >> n & 1) throw Fault{"operand not implemented", "a constant as a half"};
        fetch(w, plain, n, s[n], writes);
    }
    if (i.clamp) throw Fault{"operand not implemented", "clamp"};
    Results r;
    for (unsigned l = 0; l < w.lanes; ++l) {
        float x[3];
        for (int n = 0; n < 3; ++n) {
            const uint32_t word = static_cast<uint32_t>(s[n].at(l));
            const bool half = i.opsel_hi >> n & 1;
            x[n] = half ? widen(static_cast<uint16_t>(i.opsel >> n & 1 ? word >> 16 : word)) : bits_as<float>(word);
            if (i.neg_hi >> n & 1) x[n] = std::fabs(x[n]);
            if (i.neg >> n & 1) x[n] = -x[n];
        }
        const float sum = std::fma(x[0], x[1], x[2]);
        r.low[l] = i.width[0] == 2 ? narrow(sum) : bits_as<uint32_t>(sum);
    }
    uint32_t* const out = w.row(i.dst, 1);
    for (unsigned l = 0; l < w.lanes; ++l) {
        if (!(writes >> l & 1)) continue;
        if (i.width[0] != 2) out[l] = r.low[l];
        else if (i.opsel & 8) out[l] = (out[l] & 0xffff) | r.low[l] << 16;
        else out[l] = (out[l] & 0xffff0000) | r.low[l];
    }
}

// Packed arithmetic on pairs of floats: op_sel picks the register of the pair for the low result, op_sel_hi for the high.
// A constant is a float, and has no high register to pick.
template <class Function>
void packed_f32(Wave& w, const Instruction& i, Function function) {
    Source s[3];
    uint64_t writes = w.exec();
    Instruction plain = i;
    plain.neg = plain.opsel = 0;
    for (int n = 0; n < 3; ++n) {
        const bool constant = i.src[n] >= 128 && i.src[n] < kVector;
        if (constant) plain.width[1 + n] = 4;
        if (constant && (i.opsel | i.opsel_hi) >> n & 1) throw Fault{"operand not implemented", "the high half of a constant"};
        fetch(w, plain, n, s[n], writes);
    }
    if (i.clamp) throw Fault{"operand not implemented", "clamp"};
    Results r;
    for (unsigned l = 0; l < w.lanes; ++l)
        for (int half = 0; half < 2; ++half) {
            uint32_t x[3];
            for (int n = 0; n < 3; ++n) {
                const unsigned picks = half ? i.opsel_hi : i.opsel, negates = half ? i.neg_hi : i.neg;
                const uint64_t pair = s[n].at(l);
                x[n] = static_cast<uint32_t>(picks >> n & 1 ? pair >> 32 : pair) ^ (negates >> n & 1) << 31;
            }
            (half ? r.high : r.low)[l] = function(x, half);
        }
    write_back(w, i, r, writes);
}

inline void pk_fma_f32(Wave& w, const Instruction& i) {
    packed_f32(w, i, [](const uint32_t* x, int) {
        return bits_as<uint32_t>(std::fma(bits_as<float>(x[0]), bits_as<float>(x[1]), bits_as<float>(x[2])));
    });
}
inline void pk_mul_f32(Wave& w, const Instruction& i) {
    packed_f32(w, i, [](const uint32_t* x, int) { return bits_as<uint32_t>(bits_as<float>(x[0]) * bits_as<float>(x[1])); });
}
inline void pk_add_f32(Wave& w, const Instruction& i) {
    packed_f32(w, i, [](const uint32_t* x, int) { return bits_as<uint32_t>(bits_as<float>(x[0]) + bits_as<float>(x[1])); });
}
// The low result is picked from the first source by op_sel[0], the high one from the second by op_sel[1].
inline void pk_mov_b32(Wave& w, const Instruction& i) {
    Instruction both = i;
    both.opsel_hi = i.opsel;
    packed_f32(w, both, [](const uint32_t* x, int half) { return x[half]; });
}

// function(a, b) of halves of words: op_sel picks the half of each source for the low result, op_sel_hi for the high one.
template <class Function>
void packed_16(Wave& w, const Instruction& i, Function function) {
    Source s[2];
    uint64_t writes = w.exec();
    Instruction plain = i;
    plain.opsel = 0;
    for (int n = 0; n < 2; ++n) {
        if (i.src[n] >= 128 && i.src[n] < kVector) throw Fault{"operand not implemented", "a constant of two halves"};
        fetch(w, plain, n, s[n], writes);
    }
    if (i.clamp || i.neg || i.neg_hi) throw Fault{"operand not implemented", "modifiers of halves"};
    Results r;
    for (unsigned l = 0; l < w.lanes; ++l) {
        const auto half = [&](int n, unsigned picks) { return static_cast<uint32_t>(s[n].at(l)) >> 16 * (picks >> n & 1) & 0xffff; };
        const uint32_t low = function(half(0, i.opsel), half(1, i.opsel));
        const uint32_t high = function(half(0, i.opsel_hi), half(1, i.opsel_hi));
        r.low[l] = (low & 0xffff) | high << 16;
    }
    write_back(w, i, r, writes);
}

inline void pk_mul_lo_u16(Wave& w, const Instruction& i) {
    packed_16(w, i, [](uint32_t a, uint32_t b) { return a * b; });
}
inline void pk_mul_f16(Wave& w, const Instruction& i) {
    packed_16(w, i, [](uint32_t a, uint32_t b) {  // exact in float, then rounded
        return static_cast<uint32_t>(narrow(widen(static_cast<uint16_t>(a)) * widen(static_cast<uint16_t>(b))));
    });
}

}  // namespace emulator::own
