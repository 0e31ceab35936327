// Matrix products of 16x16x16 halves with sums in float, each sum as a chain of fma in the order of k, from C on. (The
// hardware adds in an order and with a width of its own; how far results may differ from it is up to who compares.)
#pragma once

#include "vector.h"

namespace emulator::own {

struct Matrices {
    float a[16][16], b[16][16];  // [row][k], [k][column]
    float c[16][16];
};

inline uint16_t half_of(const uint32_t* row, unsigned lanes, unsigned lane, unsigned element) {
    return static_cast<uint16_t>(row[element / 2 * lanes + lane] >> 16 * (element % 2));
}

inline void multiply(Matrices& m, bool flushes) {
    if (flushes) {
        for (auto& row : m.c)
            for (float& x : row) x = flushed(x);
    }
    for (int row = 0; row < 16; ++row)
        for (int k = 0; k < 16; ++k)
            for (int column = 0; column < 16; ++column)
                m.c[row][column] = std::fma(m.a[row][k], m.b[k][column], m.c[row][column]);
    if (flushes) {
        for (auto& row : m.c)
            for (float& x : row) x = flushed(x);
    }
}

inline void refuse_modifiers(const Wave& w, const Instruction& i) {
    if (i.neg || i.neg_hi || i.clamp || i.opsel) throw Fault{"operand not implemented", "modifiers of a matrix product"};
    if (w.exec() != w.all()) throw Fault{"matrix product with inactive lanes", "the manual wants EXEC to be all ones"};
}

// Place: (lane, register) of a sum -> its row. The column is the lane's number modulo 16, everywhere.
template <unsigned Registers, class Place>
void load_sums(Wave& w, const Instruction& i, Matrices& m, Place place) {
    const bool constant = i.src[2] < kVector;
    const float value = constant ? bits_as<float>(w.scalar(i.src[2], i)) : 0;
    const uint32_t* const row = constant ? nullptr : w.row(i.src[2], Registers);
    for (unsigned l = 0; l < w.lanes; ++l)
        for (unsigned r = 0; r < Registers; ++r)
            m.c[place(l, r)][l % 16] = constant ? value : bits_as<float>(row[r * w.lanes + l]);
}

template <unsigned Registers, class Place>
void store_sums(Wave& w, const Instruction& i, const Matrices& m, Place place) {
    uint32_t* const row = w.row(i.dst, Registers);
    for (unsigned l = 0; l < w.lanes; ++l)
        for (unsigned r = 0; r < Registers; ++r) row[r * w.lanes + l] = bits_as<uint32_t>(m.c[place(l, r)][l % 16]);
}

// Operands that are spread over all lanes: lane l holds row or column l % 16, and of k a run of Run halves from
// Run * (l / 16) on.
template <unsigned Run>
void load_spread(Wave& w, const Instruction& i, Matrices& m, bool flushes) {
    const uint32_t* const a = w.row(i.src[0], Run / 2);
    const uint32_t* const b = w.row(i.src[1], Run / 2);
    const auto read = [&](const uint32_t* row, unsigned lane, unsigned n) {
        const float x = widen(half_of(row, w.lanes, lane, n));
        return flushes && std::fabs(x) < 0x1p-14f ? std::copysign(0.0f, x) : x;
    };
    for (unsigned l = 0; l < w.lanes; ++l)
        for (unsigned n = 0; n < Run; ++n) {
            m.a[l % 16][l / 16 * Run + n] = read(a, l, n);
            m.b[l / 16 * Run + n][l % 16] = read(b, l, n);
        }
}

// Operands spread with runs of N; N sums a lane, rows N * (l / 16) on: CDNA with four, RDNA4 with eight. MI200 flushes
// subnormal halves and sums (rocBLAS' and PyTorch's notes).
template <unsigned N>
void spread_16x16x16_f16(Wave& w, const Instruction& i) {
    refuse_modifiers(w, i);
    Matrices m;
    const bool flushes = w.device->launch.flushes_products;
    const auto place = [](unsigned lane, unsigned r) { return N * (lane / 16) + r; };
    load_spread<N>(w, i, m, flushes);
    load_sums<N>(w, i, m, place);
    multiply(m, flushes);
    store_sums<N>(w, i, m, place);
}

// RDNA3: lane l holds all of row or column l % 16, lanes 16 to 31 the same as 0 to 15; eight sums a lane, of rows 2 * r for
// lanes 0 to 15 and 2 * r + 1 for the others.
inline void wmma_16x16x16_f16_rdna3(Wave& w, const Instruction& i) {
    refuse_modifiers(w, i);
    Matrices m;
    const auto place = [](unsigned lane, unsigned r) { return 2 * r + lane / 16; };
    const uint32_t* const a = w.row(i.src[0], 8);
    const uint32_t* const b = w.row(i.src[1], 8);
    for (unsigned r = 0; r < 8; ++r)
        for (unsigned l = 0; l < 16; ++l)
            if (a[r * 32 + l] != a[r * 32 + l + 16] || b[r * 32 + l] != b[r * 32 + l + 16])
                throw Fault{"matrix operand not replicated", "lanes 16 to 31 must hold what lanes 0 to 15 do", static_cast<int>(l)};
    for (unsigned l = 0; l < 16; ++l)
        for (unsigned k = 0; k < 16; ++k) {
            m.a[l][k] = widen(half_of(a, 32, l, k));
            m.b[k][l] = widen(half_of(b, 32, l, k));
        }
    load_sums<8>(w, i, m, place);
    multiply(m, false);
    store_sums<8>(w, i, m, place);
}

}  // namespace emulator::own
