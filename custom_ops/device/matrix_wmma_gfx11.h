// v_wmma_f32_16x16x16_f16 of gfx11: lane l of 32 holds all 16 values of row or column l % 16 of an operand (lanes 16 to 31
// the same as 0 to 15), and the sums of column l % 16 with rows l / 16, 2 + l / 16, ..., 14 + l / 16.
#pragma once

#include "device.h"

namespace sdort::matrix {

constexpr int kSlots = 1, kElements = 8, kRun = 8;
constexpr int kAhead = 2;
constexpr bool kHalves = false;
constexpr bool kTransposes = false;
constexpr bool kSubnormals = true;

struct Rows {
    uint32_t words[8];
};
using Columns = Rows;
struct Sums {
    float values[kElements];
};

SDORT_INLINE int slot_of(int) { return 0; }
SDORT_INLINE int row_of(int i) { return 2 * i + lane_index() / 16; }
SDORT_INLINE int column_of(int) { return lane_index() % 16; }

template <class Combine>
SDORT_INLINE float over_column(float value, Combine combine) {
    return combine(value, shuffle_xor<16>(value));
}

template <int Depth = 16, bool Swapped = false, class At>
SDORT_INLINE Rows load_rows(At at) {
    Rows rows{};
#pragma unroll
    for (int eight = 0; eight < Depth / 8; ++eight) {
        const Quad quad = *reinterpret_cast<const Quad*>(at(lane_index() % 16, eight));
#pragma unroll
        for (int i = 0; i < 4; ++i) rows.words[4 * eight + i] = quad.words[i];
    }
    return rows;
}

template <int Depth = 16, class At>
SDORT_INLINE Columns load_columns(At at) {
    return load_rows<Depth>(at);
}

#if defined(SDORT_SIMULATED)

struct Wmma {
    static constexpr int kDepth = 16;
    // Both copies must be there: even values are taken from one and odd values from the other.
    static Place a(int row, int k) { return {row + 16 * (k % 2), k}; }
    static Place b(int k, int column) { return {column + 16 * (k % 2), k}; }
    static int row(int lane, int i) { return 2 * i + lane / 16; }
    static int column(int lane, int) { return lane % 16; }
};
inline Sums instruction(const Rows& a, const Columns& b, const Sums& sums) { return simulated_product<Wmma>(a, b, sums); }
inline uint32_t other_half(uint32_t word) { return shuffle_word(word, lane_index() ^ 16); }
inline uint32_t permute_bytes(uint32_t high, uint32_t low, uint32_t selector) {
    const uint64_t both = static_cast<uint64_t>(high) << 32 | low;
    uint32_t result = 0;
    for (int i = 0; i < 4; ++i) result |= static_cast<uint32_t>(both >> 8 * (selector >> 8 * i & 7) & 0xff) << 8 * i;
    return result;
}

#else

SDORT_INLINE Sums instruction(const Rows& a, const Columns& b, const Sums& sums) {
    return matrix_product(a, b, sums);
}
SDORT_INLINE uint32_t permute_bytes(uint32_t high, uint32_t low, uint32_t selector) {
    return __builtin_amdgcn_perm(high, low, selector);
}

#endif

template <int Depth = 16, int Height = 16>
SDORT_INLINE void multiply(const Rows& rows, const Columns& columns, Sums& sums) {
    sums = instruction(rows, columns, sums);
}

// The lane has every second value of its column, the lane 16 further the others.
SDORT_INLINE Columns as_columns(const Sums& sums) {
    const uint32_t first = lane_index() < 16 ? 0x05040100u : 0x01000504u;
    const uint32_t second = lane_index() < 16 ? 0x07060302u : 0x03020706u;
    Columns columns;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        const uint32_t mine = narrow_pair(sums.values[2 * i], sums.values[2 * i + 1]), others = other_half(mine);
        columns.words[2 * i] = permute_bytes(others, mine, first);
        columns.words[2 * i + 1] = permute_bytes(others, mine, second);
    }
    return columns;
}

SDORT_INLINE const Columns& as_columns(const Rows& rows) { return rows; }

SDORT_INLINE void scale(Columns& columns, const uint32_t (&factors)[kSlots]) {
#pragma unroll
    for (int i = 0; i < 8; ++i) columns.words[i] = multiply_pairs(columns.words[i], factors[0]);
}

template <int Height = 16, class Put>
SDORT_INLINE void each_run(const Sums& sums, Put put) {
    const Columns all = as_columns(sums);
    const bool upper = lane_index() >= 16;
    uint32_t run[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        const uint32_t first = all.words[i], second = all.words[4 + i];  // clang 22 would index memory instead
        run[i] = upper ? second : first;
    }
    if (Height == 16 || !upper) put(0, upper ? 8 : 0, run);
}

}  // namespace sdort::matrix
