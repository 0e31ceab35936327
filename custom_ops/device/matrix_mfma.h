// v_mfma_f32_16x16x16_f16 (gfx90a, gfx942, gfx950): lane l of 64 holds row or column l % 16 of an operand with
// k = 4 * (l / 16) to 4 * (l / 16) + 3, and the sums of column l % 16 with rows 4 * (l / 16) to 4 * (l / 16) + 3.
//
// gfx90a (MI200) reads float16 subnormals as zero, gfx942 and later do not (AMD, MIOpen: "MI200 MFMA behavior specifics");
// the simulation does. Of an operand's element that loses less than 2^-14, which is what rounding to float16 takes of one
// of 1/8 or more: scores lose at most scale * sum |q| * 2^-14 by K's (and the same by Q's), outputs 2^-14 by V's.
#pragma once

#include "device.h"

namespace sdort::matrix {

constexpr int kSlots = 1, kElements = 4, kRun = 4;
constexpr int kAhead = 4;
constexpr bool kHalves = true;
constexpr bool kTransposes = false;
constexpr bool kSubnormals = false;

struct Rows {
    uint32_t words[2];
};
using Columns = Rows;
struct Sums {
    float values[kElements];
};

SDORT_INLINE int slot_of(int) { return 0; }
SDORT_INLINE int row_of(int i) { return lane_index() / 16 * 4 + i; }
SDORT_INLINE int column_of(int) { return lane_index() % 16; }

template <class Combine>
SDORT_INLINE float over_column(float value, Combine combine) {
    value = combine(value, shuffle_xor<16>(value));
    return combine(value, shuffle_xor<32>(value));
}

template <int Depth = 16, bool Swapped = false, class At>
SDORT_INLINE Rows load_rows(At at) {
    const int group = lane_index() / 16;
    const bool inside = Depth == 16 || group < 2;
    const int second = Swapped ? group % 2 ^ lane_index() / 8 % 2 : group % 2;
    const half* const from = at(lane_index() % 16, inside ? group / 2 : 0) + second * 4;
    const Rows rows = *reinterpret_cast<const Rows*>(__builtin_assume_aligned(from, 8));
    return {{inside ? rows.words[0] : 0u, inside ? rows.words[1] : 0u}};
}

template <int Depth = 16, class At>
SDORT_INLINE Columns load_columns(At at) {
    return load_rows<Depth>(at);
}

#if defined(SDORT_SIMULATED)

struct Mfma {
    static constexpr int kDepth = 16;
    static Place a(int row, int k) { return {row + 16 * (k / 4), k % 4}; }
    static Place b(int k, int column) { return {column + 16 * (k / 4), k % 4}; }
    static int row(int lane, int i) { return 4 * (lane / 16) + i; }
    static int column(int lane, int) { return lane % 16; }
};
inline Rows without_subnormals(Rows rows) {
    for (uint32_t& word : rows.words) {
        if (!(word & 0x7c00u)) word &= 0xffff8000u;
        if (!(word & 0x7c000000u)) word &= 0x8000ffffu;
    }
    return rows;
}
inline Sums instruction(const Rows& a, const Columns& b, const Sums& sums) {
    return simulated_product<Mfma>(without_subnormals(a), without_subnormals(b), sums);
}

#else

SDORT_INLINE Sums instruction(const Rows& a, const Columns& b, const Sums& sums) {
    return matrix_product(a, b, sums);
}

#endif

template <int Depth = 16, int Height = 16>
SDORT_INLINE void multiply(const Rows& rows, const Columns& columns, Sums& sums) {
    sums = instruction(rows, columns, sums);
}

SDORT_INLINE Columns as_columns(const Sums& sums) {
    return {{narrow_pair(sums.values[0], sums.values[1]), narrow_pair(sums.values[2], sums.values[3])}};
}

SDORT_INLINE const Columns& as_columns(const Rows& rows) { return rows; }

SDORT_INLINE void scale(Columns& columns, const uint32_t (&factors)[kSlots]) {
#pragma unroll
    for (int i = 0; i < 2; ++i) columns.words[i] = multiply_pairs(columns.words[i], factors[0]);
}

template <int Height = 16, class Put>
SDORT_INLINE void each_run(const Sums& sums, Put put) {
    const int row = row_of(0);
    if (row < Height) put(0, row, as_columns(sums).words);
}

}  // namespace sdort::matrix
