// v_wmma_f32_16x16x16_f16 of gfx12: lane l of 32 holds row or column l % 16 of an operand with k = 8 * (l / 16) to
// 8 * (l / 16) + 7, and the sums of column l % 16 with rows 8 * (l / 16) to 8 * (l / 16) + 7.
#pragma once

#include "device.h"

namespace sdort::matrix {

constexpr int kSlots = 1, kElements = 8, kRun = 8;
constexpr int kAhead = 4;
constexpr bool kHalves = false;
constexpr bool kTransposes = false;
constexpr bool kSubnormals = true;

using Rows = Quad;
using Columns = Quad;
struct Sums {
    float values[kElements];
};

SDORT_INLINE int slot_of(int) { return 0; }
SDORT_INLINE int row_of(int i) { return lane_index() / 16 * 8 + i; }
SDORT_INLINE int column_of(int) { return lane_index() % 16; }

template <class Combine>
SDORT_INLINE float over_column(float value, Combine combine) {
    return combine(value, shuffle_xor<16>(value));
}

template <int Depth = 16, bool Swapped = false, class At>
SDORT_INLINE Rows load_rows(At at) {
    const bool inside = Depth == 16 || lane_index() < 16;
    Rows rows = *reinterpret_cast<const Quad*>(at(lane_index() % 16, inside ? lane_index() / 16 : 0));
#pragma unroll
    for (int i = 0; i < 4; ++i) rows.words[i] = inside ? rows.words[i] : 0u;
    return rows;
}

template <int Depth = 16, class At>
SDORT_INLINE Columns load_columns(At at) {
    return load_rows<Depth>(at);
}

#if defined(SDORT_SIMULATED)

struct Wmma {
    static constexpr int kDepth = 16;
    static Place a(int row, int k) { return {row + 16 * (k / 8), k % 8}; }
    static Place b(int k, int column) { return {column + 16 * (k / 8), k % 8}; }
    static int row(int lane, int i) { return 8 * (lane / 16) + i; }
    static int column(int lane, int) { return lane % 16; }
};
inline Sums instruction(const Rows& a, const Columns& b, const Sums& sums) { return simulated_product<Wmma>(a, b, sums); }

#else

SDORT_INLINE Sums instruction(const Rows& a, const Columns& b, const Sums& sums) {
    return matrix_product(a, b, sums);
}

#endif

template <int Depth = 16, int Height = 16>
SDORT_INLINE void multiply(const Rows& rows, const Columns& columns, Sums& sums) {
    sums = instruction(rows, columns, sums);
}

SDORT_INLINE Columns as_columns(const Sums& sums) { return pack(sums.values); }

SDORT_INLINE const Columns& as_columns(const Rows& rows) { return rows; }

SDORT_INLINE void scale(Columns& columns, const uint32_t (&factors)[kSlots]) {
#pragma unroll
    for (int i = 0; i < 4; ++i) columns.words[i] = multiply_pairs(columns.words[i], factors[0]);
}

template <int Height = 16, class Put>
SDORT_INLINE void each_run(const Sums& sums, Put put) {
    const int row = row_of(0);
    if (row < Height) put(0, row, as_columns(sums).words);
}

}  // namespace sdort::matrix
