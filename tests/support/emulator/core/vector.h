// Vector instructions that work lane by lane: operands with their modifiers in, results out.
#pragma once

#include "machine.h"
#include "numbers.h"

namespace emulator {

constexpr int kMost = 64;  // lanes of a wave

// What the source lane of DPP is: -1, where it lies outside of the row.
inline int dpp_source(const Wave& w, unsigned control, int lane) {
    const int row = lane & ~15, in_row = lane & 15, amount = control & 15;
    const auto inside = [&](int other) { return other < 0 || other > 15 ? -1 : row + other; };
    if (control <= 0xff) return (lane & ~3) | (control >> 2 * (lane & 3) & 3);
    if (control >= 0x101 && control <= 0x10f) return inside(in_row + amount);  // row_shl
    if (control >= 0x111 && control <= 0x11f) return inside(in_row - amount);  // row_shr
    if (control >= 0x121 && control <= 0x12f) return row + ((in_row - amount) & 15);  // row_ror
    if (control == 0x140) return row + 15 - in_row;                                   // row_mirror
    if (control == 0x141) return (lane & ~7) + 7 - (lane & 7);                        // row_half_mirror
    if (control >= 0x150 && control <= 0x15f) return row + amount;                    // row_share, row_newbcast
    if (control >= 0x160 && control <= 0x16f && w.family != kCdna) return lane ^ amount;  // row_xmask
    throw Fault{"operand not implemented", "DPP control " + std::to_string(control)};
}

// A source of a vector instruction: words of all lanes.
struct Source {
    const uint32_t* low;
    const uint32_t* high;
    unsigned step = 0, high_step = 0;  // 0: one value for all lanes
    uint32_t constant[2] = {0, 0};
    uint32_t held[2][kMost];

    uint64_t at(unsigned lane) const {
        return low[lane * step] | static_cast<uint64_t>(high[lane * high_step]) << 32;
    }
};

inline void hold(Source& s, unsigned lanes) {
    for (unsigned l = 0; l < lanes; ++l) {
        const uint64_t value = s.at(l);
        s.held[0][l] = static_cast<uint32_t>(value);
        s.held[1][l] = static_cast<uint32_t>(value >> 32);
    }
    s.low = s.held[0];
    s.high = s.held[1];
    s.step = s.high_step = 1;
}

// Returns the lanes that DPP lets write.
inline uint64_t permute_by_dpp(Wave& w, const Instruction& i, Source& s) {
    const uint64_t exec = w.exec();
    uint64_t writes = 0;
    uint32_t moved[kMost];
    for (unsigned l = 0; l < w.lanes; ++l) {
        const int from = dpp_source(w, i.dpp, static_cast<int>(l));
        const bool valid = from >= 0 && (i.flags & kFetchInactive || exec >> from & 1);
        moved[l] = valid ? s.low[static_cast<unsigned>(from) * s.step] : 0;
        const bool masked = i.dpp_masks >> (4 + l / 16 % 4) & i.dpp_masks >> (l / 4 % 4) & 1;
        if (masked && (valid || i.flags & kBoundControl)) writes |= 1ull << l;
    }
    std::memcpy(s.held[0], moved, sizeof moved);
    s.low = s.held[0];
    s.step = 1;
    return writes;
}

inline uint32_t selected(uint32_t word, unsigned select, bool extend) {
    if (select < 4) return extend ? static_cast<uint32_t>(static_cast<int8_t>(word >> 8 * select)) : word >> 8 * select & 0xff;
    if (select < 6) {
        const uint32_t half = word >> 16 * (select - 4);
        return extend ? static_cast<uint32_t>(static_cast<int16_t>(half)) : half & 0xffff;
    }
    return word;
}

// The source with its modifiers; `writes` loses the lanes that DPP forbids.
inline void fetch(Wave& w, const Instruction& i, int n, Source& s, uint64_t& writes) {
    const unsigned code = i.src[n], width = i.width[1 + n];
    s.low = &s.constant[0];
    s.high = &s.constant[1];
    if (code >= kVector && code != kNone) {
        s.low = w.row(code, width == 8 ? 2 : 1);
        s.step = 1;
        if (width == 8) {
            s.high = s.low + w.lanes;
            s.high_step = 1;
        }
    } else if (code != kNone) {
        const uint64_t value = width == 8 ? w.scalar64(code, i) : w.scalar(code, i);
        s.constant[0] = static_cast<uint32_t>(value);
        s.constant[1] = static_cast<uint32_t>(value >> 32);
        if (width == 2 && code >= 240 && code <= 248) s.constant[0] = narrow(bits_as<float>(s.constant[0]));
    }
    if (n == 0 && i.flags & kDpp) {
        if (width == 8) throw Fault{"operand not implemented", "DPP of 64 bits"};
        writes &= permute_by_dpp(w, i, s);
    }
    const bool sdwa = i.flags & kSdwa && n < 2, high_half = width == 2 && i.opsel >> n & 1;
    const bool negates = i.neg >> n & 1, positive = i.abs >> n & 1;
    if (!(sdwa || high_half || negates || positive)) return;
    hold(s, w.lanes);
    const uint32_t sign = width == 2 ? 0x8000u : 0x80000000u;
    uint32_t* const words = width == 8 ? s.held[1] : s.held[0];
    for (unsigned l = 0; l < w.lanes; ++l) {
        if (sdwa) words[l] = selected(words[l], i.sdwa_src[n] & 7, i.sdwa_src[n] & 8);
        if (high_half) words[l] >>= 16;
        if (positive) words[l] &= ~sign;
        if (negates) words[l] ^= sign;
    }
}

// Where the results of a vector instruction go, once all lanes are computed.
struct Results {
    uint32_t low[kMost], high[kMost];
};

inline uint32_t merged(const Wave& w, const Instruction& i, uint32_t old, uint32_t result) {
    if (i.flags & kSdwa && i.sdwa_dst != 6) {
        const unsigned select = i.sdwa_dst & 7, unused = i.sdwa_dst >> 3;
        const unsigned shift = select < 4 ? 8 * select : select < 6 ? 16 * (select - 4) : 0;
        const uint32_t field = (select < 4 ? 0xffu : select < 6 ? 0xffffu : ~0u) << shift;
        if (unused == 1) throw Fault{"operand not implemented", "SDWA with UNUSED_SEXT"};
        return (unused == 2 ? old & ~field : 0) | (result << shift & field);
    }
    if (i.width[0] != 2) return result;
    if (i.opsel & 8) return (old & 0xffff) | result << 16;
    // 16-bit results clear the upper half on CDNA (LLVM, zeroesHigh16BitsOfDest), and leave it alone on RDNA.
    return w.family == kCdna ? result & 0xffff : (old & 0xffff0000) | (result & 0xffff);
}

inline void write_back(Wave& w, const Instruction& i, const Results& r, uint64_t lanes) {
    if (i.omod) throw Fault{"operand not implemented", "output modifier"};
    const bool wide = i.width[0] == 8;
    uint32_t* const low = w.row(i.dst, wide ? 2 : 1);
    uint32_t* const high = low + w.lanes;
    const bool plain = i.width[0] != 2 && !(i.flags & kSdwa);
    for (unsigned l = 0; l < w.lanes; ++l) {
        if (!(lanes >> l & 1)) continue;
        low[l] = plain ? r.low[l] : merged(w, i, low[l], r.low[l]);
        if (wide) high[l] = r.high[l];
    }
}

struct Context {
    bool carry;  // this lane's bit of the mask that comes in
    bool result = false;  // and of the one that goes out
    const Value& immediate;
    bool ieee, clamp;
    unsigned lane;
};

template <class Operation>
void vector_operation(Wave& w, const Instruction& i) {
    Source s[3];
    uint64_t writes = w.exec(), result = 0;
    for (int n = 0; n < 3; ++n) fetch(w, i, n, s[n], writes);
    const uint64_t carries = i.mask == kNone ? 0 : w.mask(i.mask);
    const Value literal = value(i.literal);
    const bool keeps = i.dst != kNone;
    const uint32_t* const old = keeps ? w.row(i.dst, 1) : nullptr;
    if (i.clamp && !Operation::kClamps) throw Fault{"operand not implemented", "clamp"};
    Results r;
    for (unsigned l = 0; l < w.lanes; ++l) {
        Context c{(carries >> l & 1) != 0, false, literal, w.device->launch.ieee != 0, i.clamp != 0, l};
        Value d;
        d.u64 = keeps ? old[l] : 0;
        Operation::lane(value(s[0].at(l)), value(s[1].at(l)), value(s[2].at(l)), d, c);
        r.low[l] = d.u32;
        r.high[l] = static_cast<uint32_t>(d.u64 >> 32);
        result |= static_cast<uint64_t>(c.result) << l;
    }
    if (keeps) write_back(w, i, r, writes);
    if (i.sdst != kNone) w.set_mask(i.sdst, result & writes);  // inactive lanes' bits become 0
}

template <class Operation>
void scalar_operation(Wave& w, const Instruction& i) {
    Value s[2], d, exec = value(w.exec()), immediate, literal = value(i.literal);
    immediate.i64 = i.immediate;
    for (int n = 0; n < 2; ++n)
        s[n].u64 = i.src[n] == kNone ? 0 : i.width[1 + n] == 8 ? w.scalar64(i.src[n], i) : w.scalar(i.src[n], i);
    d.u64 = i.dst == kNone ? 0 : i.width[0] == 8 ? w.scalar64(i.dst, i) : w.scalar(i.dst, i);
    uint32_t scc = w.scc;
    Operation::run(s[0], s[1], d, exec, scc, immediate, literal);
    if (Operation::kExec) w.set_exec(exec.u64);
    if (i.dst != kNone) {
        if (i.width[0] == 8) w.set_scalar64(i.dst, d.u64);
        else w.set_scalar(i.dst, d.u32);
    }
    w.scc = scc != 0;
}

#define EMULATOR_VECTOR_CLAMPED(name, clamps, ...)                                                                \
    struct name {                                                                                                 \
        static constexpr bool kClamps = clamps;                                                                   \
        static inline __attribute__((always_inline)) void lane(const Value S0, const Value S1, const Value S2, Value& D0, \
                                                               Context& C) {                                      \
            (void)S0, (void)S1, (void)S2, (void)D0, (void)C;                                                      \
            __VA_ARGS__                                                                                           \
        }                                                                                                         \
    };
#define EMULATOR_VECTOR(name, ...) EMULATOR_VECTOR_CLAMPED(name, false, __VA_ARGS__)
#define EMULATOR_SCALAR(name, exec, ...)                                                                       \
    struct name {                                                                                              \
        static constexpr bool kExec = exec;                                                                    \
        static inline void run(const Value S0, const Value S1, Value& D0, Value& EXEC, uint32_t& SCC,          \
                               const Value SIMM16, const Value SIMM32) {                                       \
            (void)S0, (void)S1, (void)D0, (void)EXEC, (void)SCC, (void)SIMM16, (void)SIMM32;                   \
            __VA_ARGS__                                                                                        \
        }                                                                                                      \
    };

}  // namespace emulator
