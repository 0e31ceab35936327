// Instructions that move values between lanes.
#pragma once

#include "vector.h"

namespace emulator::own {

inline void readfirstlane(Wave& w, const Instruction& i) {
    const uint64_t exec = w.exec();
    const int lane = exec ? __builtin_ctzll(exec) : 0;
    const uint32_t value = i.src[0] >= kVector ? w.row(i.src[0], 1)[lane] : w.scalar(i.src[0], i);
    w.set_scalar(i.dst, value);
}

inline void readlane(Wave& w, const Instruction& i) {
    w.set_scalar(i.dst, w.row(i.src[0], 1)[w.scalar(i.src[1], i) % w.lanes]);
}

// Lane `in_row` of a row reads lane lanesel[in_row] of its own row or, crossing, of the row beside it. A source lane that is
// not active: op_sel[0] ("fetch inactive") reads its register; else op_sel[1] ("bound control") gives 0; else the lane that
// would read it is not written (RDNA3 ISA, V_PERMLANE16_B32; LLVM, llvm.amdgcn.permlanex16).
template <bool Crosses>
void permlane16(Wave& w, const Instruction& i) {
    const uint64_t selects = concatenated(w.scalar(i.src[2], i), w.scalar(i.src[1], i)), exec = w.exec();
    uint32_t source[kMost];
    std::memcpy(source, w.row(i.src[0], 1), w.lanes * 4);
    uint32_t* const out = w.row(i.dst, 1);
    for (unsigned l = 0; l < w.lanes; ++l) {
        if (!(exec >> l & 1)) continue;
        const unsigned row = Crosses ? (l & ~15u) ^ 16 : l & ~15u, from = row + (selects >> 4 * (l & 15) & 15);
        if (i.opsel & 1 || exec >> from & 1) out[l] = source[from];
        else if (i.opsel & 2) out[l] = 0;
    }
}

// Lane l reads the lane that its own value names, in bytes; an inactive one gives 0. RDNA3 stays within 32 lanes.
inline void ds_bpermute(Wave& w, const Instruction& i) {
    const uint64_t exec = w.exec();
    const uint32_t* const address = w.row(i.src[0], 1);
    uint32_t source[kMost];
    std::memcpy(source, w.row(i.src[1], 1), w.lanes * 4);
    uint32_t picked[kMost];
    for (unsigned l = 0; l < w.lanes; ++l) {
        const unsigned from = (address[l] + static_cast<uint32_t>(i.immediate)) / 4 % w.lanes;
        picked[l] = exec >> from & 1 ? source[from] : 0;
    }
    uint32_t* const out = w.row(i.dst, 1);
    for (unsigned l = 0; l < w.lanes; ++l)
        if (exec >> l & 1) out[l] = picked[l];
}

// Lane l of a group of 32 reads ((l & and) | or) ^ xor, or within a quad, as the offset says; an inactive lane gives 0.
inline unsigned swizzled(unsigned lane, unsigned offset) {
    if (offset >= 0xe000) throw Fault{"operand not implemented", "ds_swizzle for FFT"};
    if (offset >= 0xc000) {  // rotation by [9:5], to lower lanes or higher ones by bit 10; [4:0] stay
        const unsigned keep = offset & 31, by = offset >> 5 & 31, to = offset & 0x400 ? lane - by : lane + by;
        return (lane & ~31u) | (lane & keep) | (to & 31 & ~keep);
    }
    if (offset & 0x8000) return (lane & ~3u) | (offset >> 2 * (lane & 3) & 3);
    return (lane & ~31u) | ((((lane & offset & 31) | (offset >> 5 & 31)) ^ (offset >> 10 & 31)) & 31);
}

inline void ds_swizzle(Wave& w, const Instruction& i) {
    const uint64_t exec = w.exec();
    uint32_t source[kMost];
    std::memcpy(source, w.row(i.src[0], 1), w.lanes * 4);
    uint32_t* const out = w.row(i.dst, 1);
    for (unsigned l = 0; l < w.lanes; ++l) {
        if (!(exec >> l & 1)) continue;
        const unsigned from = swizzled(l, static_cast<unsigned>(i.immediate));
        out[l] = exec >> from & 1 ? source[from] : 0;
    }
}

}  // namespace emulator::own
