// Tiles of K and V on their way from global to shared memory, 16 bytes a lane and access.
//
// Where copies are asynchronous they land while the tile before is computed with, in the other of two buffers. Elsewhere
// registers hold the next tile meanwhile. K lies as it is, a row a key, pitch an odd number of 16-byte units, so that eight
// rows read together meet all banks. V lies the same way where the machine transposes as it reads. Elsewhere it lies
// transposed, a row for each of V's columns: two keys' values make a word, and every eight rows begin eight banks further than
// those before, so that the words of eight pairs in four columns' rows, which 32 lanes write together, meet all banks. Where
// 16 rows are read together, 8 bytes of each (matrix::kHalves), every other eight rows have the halves of their units exchanged.
#pragma once

#include "attention.h"
#include "device/copy.h"
#include "device/matrix.h"
#include "device/wave.h"

namespace sdort::attention {

constexpr int kWaves = 4;
constexpr int kThreads = kWaves * kWave;

// Of a tile of `Keys` keys.
template <int Size, int Keys>
struct Layout {
    static constexpr int kEights = Size / 8;
    static constexpr int kPitch = kEights % 2 ? Size : Size + 8;
    static constexpr int kKeyQuads = Keys * kPitch / 8;
    static constexpr int kValueRows = (Size + 15) / 16 * 16;
    static constexpr int kValuePitch = Keys / 8 % 2 ? Keys : Keys + 8;
    static constexpr int kEightRows = 8 * kValuePitch + 16;  // from one eight to the next
    static constexpr int kValueQuads = matrix::kTransposes ? kKeyQuads : kValueRows / 8 * kEightRows / 8;
    static constexpr int kQuads = kKeyQuads + kValueQuads;

    // Element (16 * tile + row, 16 * key_tile + 8 * eight) of V transposed. What depends on the lane is apart from what the
    // compiler knows, which becomes the offset of an instruction.
    SDORT_INLINE static int value(int tile, int row, int key_tile, int eight) {
        const int known = tile * 2 * kEightRows + key_tile * 16;
        return row / 8 * kEightRows + row % 8 * kValuePitch + eight * 8 + known;
    }
};

// Whether the halves of the units of a row are exchanged.
SDORT_INLINE bool swapped(int row) { return matrix::kHalves && row / 8 % 2; }

// Q, K or V of one head. Offsets are of 32 bits, and the pointer is an argument: few registers to keep. Rows, and elements from
// one to the next, are fewer than 2^24 (geometry.h).
struct Head {
    const half* data;
    uint32_t first;
    uint32_t pitch;
    SDORT_INLINE const half* at(int row, int column) const {
        return element(data, first + multiply_24(static_cast<uint32_t>(row), pitch) + static_cast<uint32_t>(column));
    }
};

SDORT_INLINE Head head_of(const Tensor& t, int batch, int head) {
    return {static_cast<const half*>(t.data),
            static_cast<uint32_t>(batch) * static_cast<uint32_t>(t.batch) + static_cast<uint32_t>(head) * static_cast<uint32_t>(t.head),
            static_cast<uint32_t>(t.row)};
}

// Each thread has one of a row's 16-byte units in every kStride-th row. What is read where there is no row is that of the
// last key: valid, and its weight is zero.
template <class L, int Rows>
struct Share {
    static constexpr int kStride = kThreads / L::kEights, kEach = (Rows + kStride - 1) / kStride;
    const int thread = thread_index_again();
    SDORT_INLINE int row(int i) const { return thread / L::kEights + i * kStride; }
    SDORT_INLINE int column() const { return thread % L::kEights * 8; }

    // put(i) for those of this thread's rows that are to be written.
    template <class Put>
    SDORT_INLINE void each(Put put) const {
        if (kThreads % L::kEights && thread >= kStride * L::kEights) return;
#pragma unroll
        for (int i = 0; i < kEach - 1; ++i) put(i);
        if (Rows % kStride == 0 || row(kEach - 1) < Rows) put(kEach - 1);
    }
};

SDORT_INLINE const Quad* unit(const Head& head, int row, int keys, int column) {
    return reinterpret_cast<const Quad*>(head.at(within(row, keys), column));
}

// Word by word: clang keeps arrays of structs that are copied whole in scratch memory.
SDORT_INLINE void copy(Quad& to, const Quad& from) {
#pragma unroll
    for (int i = 0; i < 4; ++i) to.words[i] = from.words[i];
}

// Rows as they are.
template <class L, int Keys>
struct StageRows {
    using S = Share<L, Keys>;
    Quad held[kAsyncCopies ? 1 : S::kEach];

    SDORT_INLINE void fetch(const Head& from, int key, int keys, half* to) {
        const S share;
        if constexpr (kAsyncCopies) {
            share.each([&](int i) {
                copy_async(reinterpret_cast<Quad*>(to + share.row(i) * L::kPitch + share.column()),
                           unit(from, key + share.row(i), keys, share.column()));
            });
        } else {
#pragma unroll
            for (int i = 0; i < S::kEach; ++i) copy(held[i], *unit(from, key + share.row(i), keys, share.column()));
        }
    }

    SDORT_INLINE void land(half* to) {
        if constexpr (!kAsyncCopies) {
            const S share;
            share.each([&](int i) {
                const bool swap = swapped(share.row(i));
                Quad quad;
#pragma unroll
                for (int j = 0; j < 4; ++j) quad.words[j] = swap ? held[i].words[j ^ 2] : held[i].words[j];
                store_quad(reinterpret_cast<Quad*>(to + share.row(i) * L::kPitch + share.column()), quad);
            });
        }
    }
};

// Columns as rows: a thread has eight columns of two keys, its neighbours those of the next keys, eight pairs in all; the next
// eight threads have the next columns, and then come the next pairs.
template <class L, int Keys>
struct StageColumns {
    static constexpr int kCells = Keys / 16 * L::kEights, kStride = kThreads / 8, kEach = (kCells + kStride - 1) / kStride;
    Quad held[kEach][2];

    SDORT_INLINE static int cell(int i) { return thread_index_again() / 8 + i * kStride; }
    SDORT_INLINE static int pair(int i) { return cell(i) / L::kEights * 8 + thread_index_again() % 8; }

    SDORT_INLINE void fetch(const Head& from, int key, int keys, half*) {
#pragma unroll
        for (int i = 0; i < 2 * kEach; ++i)
            copy(held[i / 2][i % 2], *unit(from, key + 2 * pair(i / 2) + i % 2, keys, cell(i / 2) % L::kEights * 8));
    }

    SDORT_INLINE void land(half* to) {
#pragma unroll
        for (int i = 0; i < kEach; ++i) {
            if (kCells % kStride && i == kEach - 1 && cell(i) >= kCells) return;
            const int eight = cell(i) % L::kEights, key = 2 * pair(i) ^ (swapped(8 * eight) ? 4 : 0);
#pragma unroll
            for (int j = 0; j < 8; ++j) {
                const uint32_t first = held[i][0].words[j / 2], second = held[i][1].words[j / 2];
                const uint32_t word = j % 2 ? high_halves(first, second) : low_halves(first, second);
                *reinterpret_cast<uint32_t*>(to + eight * L::kEightRows + j * L::kValuePitch + key) = word;
            }
        }
    }
};

template <class L, int Keys, bool Transposes>
struct ValueStage {
    using Type = StageColumns<L, Keys>;
};
template <class L, int Keys>
struct ValueStage<L, Keys, true> {
    using Type = StageRows<L, Keys>;
};

template <class L, int Keys>
struct Stage {
    StageRows<L, Keys> k;
    typename ValueStage<L, Keys, matrix::kTransposes>::Type v;

    SDORT_INLINE static half* values(half* buffer) { return buffer + L::kKeyQuads * 8; }
    SDORT_INLINE void fetch(const Head& from_k, const Head& from_v, int key, int keys, half* buffer) {
        k.fetch(from_k, key, keys, buffer);
        v.fetch(from_v, key, keys, values(buffer));
    }
    SDORT_INLINE void land(half* buffer) {
        wait_for_copies();
        k.land(buffer);
        v.land(values(buffer));
    }
    // Both at once, with few registers.
    SDORT_INLINE void bring(const Head& from_k, const Head& from_v, int key, int keys, half* buffer) {
        k.fetch(from_k, key, keys, buffer);
        k.land(buffer);
        v.fetch(from_v, key, keys, values(buffer));
        v.land(values(buffer));
        wait_for_copies();
    }
};

}  // namespace sdort::attention
