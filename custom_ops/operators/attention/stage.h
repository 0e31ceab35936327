// Tiles of K and V on their way from global to shared memory, 16 bytes a lane and access.
//
// Where copies are asynchronous they land while the tile before is computed with, in the other of two buffers. Elsewhere
// registers hold the next tile meanwhile. K lies as it is, a row a key, pitch an odd number of 16-byte units, so that eight
// rows read together meet all banks. V lies the same way where the machine transposes as it reads. Elsewhere it lies
// transposed, a row for each of V's columns: two keys' values make a word, and units of eight keys change places by the
// number of the column's eight, so that the writes of a wave spread over the banks too.
#pragma once

#include "attention.h"
#include "device/copy.h"
#include "device/matrix.h"
#include "device/wave.h"

namespace sdort::attention {

constexpr int kWaves = 4;
constexpr int kThreads = kWaves * kWave;

constexpr int largest_power(int n) { return n % 2 ? 1 : 2 * largest_power(n / 2); }

// Of a tile of `Keys` keys, of which `Step` are computed with at a time.
template <int Size, int Keys, int Step>
struct Layout {
    static constexpr int kEights = Size / 8;
    static constexpr int kPitch = kEights % 2 ? Size : Size + 8;
    static constexpr int kKeyQuads = Keys * kPitch / 8;
    static constexpr int kValueRows = (Size + 15) / 16 * 16;
    static constexpr int kValuePitch = Keys / 8 % 2 ? Keys : Keys + 8;
    static constexpr int kValueQuads = matrix::kTransposes ? kKeyQuads : kValueRows * kValuePitch / 8;
    static constexpr int kQuads = kKeyQuads + kValueQuads;
    static constexpr int kSwap = largest_power(Step / 8) - 1;

    // Element (16 * tile + row, 16 * key_tile + 8 * eight) of V transposed. What depends on the lane is apart from what the
    // compiler knows, which becomes the offset of an instruction.
    SDORT_INLINE static int value(int tile, int row, int key_tile, int eight) {
        const int known = tile * 16 * kValuePitch + (key_tile * 2 ^ (tile * 2 & kSwap)) * 8;
        return row * kValuePitch + (eight ^ row / 8) * 8 + known;
    }
};

// Q, K or V of one head. Offsets are of 32 bits, and the pointer is an argument: few registers to keep.
struct Head {
    const half* data;
    uint32_t first;
    uint32_t pitch;
    SDORT_INLINE const half* at(int row, int column) const {
        return data + (first + static_cast<uint32_t>(row) * pitch + static_cast<uint32_t>(column));
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
    return reinterpret_cast<const Quad*>(head.at(row < keys ? row : keys - 1, column));
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
                copy(*reinterpret_cast<Quad*>(to + share.row(i) * L::kPitch + share.column()), held[i]);
            });
        }
    }
};

// Columns as rows: a thread has eight columns of two keys.
template <class L, int Keys>
struct StageColumns {
    using S = Share<L, Keys / 2>;
    Quad held[S::kEach][2];

    SDORT_INLINE void fetch(const Head& from, int key, int keys, half*) {
        const S share;
#pragma unroll
        for (int i = 0; i < 2 * S::kEach; ++i)
            copy(held[i / 2][i % 2], *unit(from, key + 2 * share.row(i / 2) + i % 2, keys, share.column()));
    }

    SDORT_INLINE void land(half* to) {
        const S share;
        const int column = share.column();
        share.each([&](int i) {
            const int pair = share.row(i);
#pragma unroll
            for (int j = 0; j < 8; ++j) {
                const uint32_t first = held[i][0].words[j / 2], second = held[i][1].words[j / 2];
                const uint32_t word = j % 2 ? first >> 16 | (second & 0xffff0000u) : (first & 0xffffu) | second << 16;
                half* const target = to + L::value(column / 16, column % 16 + j, pair / 8, pair / 4 % 2) + pair % 4 * 2;
                *reinterpret_cast<uint32_t*>(target) = word;
            }
        });
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
