// mma.sync m16n8k16 (sm_80 and later), twice for a tile: its A has our columns as rows, its B eight of our rows as columns.
// PTX ISA, "Matrix Fragments for mma.m16n8k16 with floating point type": lane l of 32, with g = l / 4 and t = l % 4, holds
//   A  rows g and g + 8, k = 2t, 2t + 1, and 8 further     B  k = 2t, 2t + 1, and 8 further, column g
//   D  rows g and g + 8, columns 2t, 2t + 1
#pragma once

#include "device.h"

namespace sdort::matrix {

constexpr int kSlots = 2, kElements = 8, kRun = 2;
constexpr int kAhead = 4;
constexpr bool kHalves = false;
constexpr bool kTransposes = true;
constexpr bool kSubnormals = true;

struct Rows {
    uint32_t words[4];  // two of rows g, two of rows g + 8
};
struct Columns {
    uint32_t words[4];
};
struct Sums {
    float values[kElements];  // four of rows 0 to 7, four of rows 8 to 15
};

SDORT_INLINE int slot_of(int i) { return i / 2 % 2; }
SDORT_INLINE int row_of(int i) { return i / 4 * 8 + lane_index() % 4 * 2 + i % 2; }
SDORT_INLINE int column_of(int slot) { return lane_index() / 4 + 8 * slot; }

template <class Combine>
SDORT_INLINE float over_column(float value, Combine combine) {
    value = combine(value, shuffle_xor<1>(value));
    return combine(value, shuffle_xor<2>(value));
}

#if defined(SDORT_SIMULATED)

// ldmatrix: lane l names row l % 8 of the 8 x 8 matrix l / 8; lane l gets the values 2t and 2t + 1 of row g of each, or,
// transposed, the values g of rows 2t and 2t + 1.
template <int Matrices, bool Transposed>
inline Rows load_matrices(const half* row) {
    const half* const* const all = static_cast<const half* const*>(simulator::exchange(&row, sizeof row));
    const int g = lane_index() / 4, t = lane_index() % 4;
    Rows result{};
    for (int i = 0; i < Matrices; ++i) {
        const half pair[2] = {Transposed ? all[8 * i + 2 * t][g] : all[8 * i + g][2 * t],
                              Transposed ? all[8 * i + 2 * t + 1][g] : all[8 * i + g][2 * t + 1]};
        memcpy(&result.words[i], pair, 4);
    }
    return result;
}

template <int Depth>
struct Mma {
    static constexpr int kDepth = Depth;
    static Place a(int row, int k) { return {row % 8 * 4 + k % 8 / 2, k / 8 * 4 + row / 8 * 2 + k % 2}; }
    static Place b(int k, int column) { return {column * 4 + k % 8 / 2, k / 8 * 2 + k % 2}; }
    static int row(int lane, int i) { return lane / 4 + i / 2 * 8; }
    static int column(int lane, int i) { return lane % 4 * 2 + i % 2; }
};
struct Four {
    float values[4];
};
template <int Depth>
inline void instruction(const Columns& a, const uint32_t* b, float* sums) {
    struct Operand {
        uint32_t words[2];
    };
    Four four;
    memcpy(&four, sums, sizeof four);
    four = simulated_product<Mma<Depth>>(a, Operand{{b[0], b[1]}}, four);
    memcpy(sums, &four, sizeof four);
}

#else

template <int Matrices, bool Transposed>
SDORT_INLINE Rows load_matrices(const half* row) {
    const uint32_t address = static_cast<uint32_t>(__cvta_generic_to_shared(row));
    Rows r{};
    if constexpr (Matrices == 4 && Transposed) {
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                     : "=r"(r.words[0]), "=r"(r.words[1]), "=r"(r.words[2]), "=r"(r.words[3]) : "r"(address) : "memory");
    } else if constexpr (Matrices == 4) {
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                     : "=r"(r.words[0]), "=r"(r.words[1]), "=r"(r.words[2]), "=r"(r.words[3]) : "r"(address) : "memory");
    } else {
        static_assert(Matrices == 2 && Transposed);
        asm volatile("ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {%0, %1}, [%2];"
                     : "=r"(r.words[0]), "=r"(r.words[1]) : "r"(address) : "memory");
    }
    return r;
}

template <int Depth>
SDORT_INLINE void instruction(const Columns& a, const uint32_t* b, float* sums) {
    if constexpr (Depth == 16) {
        asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
            : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
            : "r"(a.words[0]), "r"(a.words[1]), "r"(a.words[2]), "r"(a.words[3]), "r"(b[0]), "r"(b[1]));
    } else {
        asm("mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5}, {%6}, {%0, %1, %2, %3};"
            : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
            : "r"(a.words[0]), "r"(a.words[1]), "r"(b[0]));
    }
}

#endif

template <int Depth = 16, bool Swapped = false, class At>
SDORT_INLINE Rows load_rows(At at) {
    const int matrix = lane_index() / 8, row = lane_index() % 8;
    // Matrices: rows 0 to 7 with k 0 to 7, then with k 8 to 15 (the same again if there are none), then rows 8 to 15.
    return load_matrices<4, false>(at(matrix / 2 * 8 + row, Depth == 16 ? matrix % 2 : 0));
}

template <int Height = 16, class At>
SDORT_INLINE Rows load_rows_transposed(At at) {
    const int matrix = lane_index() / 8, k = matrix % 2 * 8 + lane_index() % 8;
    return load_matrices<Height / 4, true>(at(k, Height == 16 ? matrix / 2 : 0));
}

template <int Depth = 16, class At>
SDORT_INLINE Columns load_columns(At at) {
    const int column = lane_index() / 4, k = lane_index() % 4 * 2;
    Columns result{};
#pragma unroll
    for (int i = 0; i < Depth / 4; ++i)
        result.words[i] = *reinterpret_cast<const uint32_t*>(at(column + i % 2 * 8, i / 2) + k);
    return result;
}

template <int Depth = 16, int Height = 16>
SDORT_INLINE void multiply(const Rows& rows, const Columns& columns, Sums& sums) {
    instruction<Depth>(columns, rows.words, sums.values);
    if constexpr (Height == 16) instruction<Depth>(columns, rows.words + 2, sums.values + 4);
}

SDORT_INLINE Columns as_columns(const Sums& sums) {
    Columns columns;
#pragma unroll
    for (int i = 0; i < 4; ++i) columns.words[i] = narrow_pair(sums.values[2 * i], sums.values[2 * i + 1]);
    return columns;
}

SDORT_INLINE Columns as_columns(const Rows& rows) {
    return {{rows.words[0], rows.words[2], rows.words[1], rows.words[3]}};
}

SDORT_INLINE void scale(Columns& columns, const uint32_t (&factors)[kSlots]) {
#pragma unroll
    for (int i = 0; i < 4; ++i) columns.words[i] = multiply_pairs(columns.words[i], factors[i % 2]);
}

template <int Height = 16, class Put>
SDORT_INLINE void each_run(const Sums& sums, Put put) {
    const Columns pairs = as_columns(sums);
#pragma unroll
    for (int i = 0; i < Height / 4; ++i) put(i % 2, row_of(2 * i), &pairs.words[i]);
}

}  // namespace sdort::matrix
