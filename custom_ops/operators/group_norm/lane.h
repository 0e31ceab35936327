// What one lane of the fast variant does with its rows: it owns one 16-byte vector of channels, of every step_rows-th row.
#pragma once

#include "group_norm.h"
#include "moments.h"
#include "silu.h"

namespace sdort::group_norm {

// Idle lanes have a row that no block has.
constexpr int kNoRow = 1 << 29;

// Offsets are in vectors, from the block's first row, which has 32 bits for them.
struct Lane {
    int image, slab, split;
    int column;            // vector of the tile's row
    int channel;           // first of its channels
    int row;               // its first row, counted in the block
    int rows;              // of the block
    size_t base;           // where the block begins in (N, H*W, C)
    uint32_t at, step;     // its first row's vector, and from one of its rows to the next
    const Quad* source;    // X or X2, whichever has its channels: its first row's vector
    uint32_t source_step;
};

// gamma or beta of a channel.
SDORT_INLINE float affine_at(const Args& args, const void* values, int channel) {
    return args.half_affine ? widen(static_cast<const half*>(values)[channel]) : static_cast<const float*>(values)[channel];
}

SDORT_INLINE int slab_of(const Args& args) { return args.splits == 1 ? block_index() : block_index_y(); }
SDORT_INLINE int split_of(const Args& args) { return args.splits == 1 ? 0 : block_index(); }

template <class T>
SDORT_INLINE Lane lane_of(const Args& args, int slab, int split) {
    constexpr int V = kVector<T>;
    Lane lane;
    lane.slab = slab;
    lane.split = split;
    lane.image = static_cast<int>(static_cast<uint64_t>(lane.slab) * args.tile_inverse >> 24);
    const int start = lane.split * args.split_rows, left = args.hw - start;
    lane.rows = left < args.split_rows ? left : args.split_rows;
    const int thread = thread_index(), row = thread * args.lane_inverse >> 16;
    lane.column = thread - row * args.lanes;
    lane.row = row < args.step_rows ? row : kNoRow;
    const uint32_t column = (lane.slab - lane.image * args.tiles) * args.lanes + lane.column;
    lane.channel = column * V;
    const size_t pixel = static_cast<size_t>(lane.image) * args.hw + start;
    const uint32_t all = static_cast<uint32_t>(args.channels) / V, own = static_cast<uint32_t>(args.x_channels) / V;
    const bool second = column >= own;
    const uint32_t width = second ? all - own : own;
    lane.base = pixel * all;
    lane.at = row * all + column;
    lane.step = all * args.step_rows;
    lane.source = static_cast<const Quad*>(second ? args.x2 : args.x) + (pixel + row) * width + (second ? column - own : column);
    lane.source_step = width * args.step_rows;
    return lane;
}

// Steps first .. first + R - 1 of the lane, those below row `end`: the first few, as many as it returns. All loads leave
// before the first one is used. Streaming: what is read once leaves the cache to what is read again. Offsets and rows are
// added up as they go: few registers, where one for each row would take many.
template <int R, bool Streaming = false>
SDORT_INLINE int fetch(const Args& args, const Lane& lane, const Quad* source, uint32_t start, uint32_t stride, int first,
                       int end, Quad (&rows)[R]) {
    int row = lane.row + first * args.step_rows, valid = 0;
    uint32_t at = start + first * stride;
#pragma unroll
    for (int r = 0; r < R; ++r, row += args.step_rows, at += stride) {
        rows[r] = {};
        if (row >= end) continue;
        rows[r] = Streaming ? load_streaming(source + at) : source[at];
        valid = r + 1;
    }
    return valid;
}

SDORT_INLINE bool adds(const Args& args) { return args.skip || args.bias || args.embedding; }

// X to S: what is added, and where it is wanted, S itself. The first `valid` of the steps from `first` on.
template <class T, int R>
SDORT_INLINE void add(const Args& args, const Lane& lane, int first, int valid, Quad (&rows)[R]) {
    constexpr int V = kVector<T>, kBatch = R <= 8 ? R : R <= 12 ? 4 : 2;  // as many as there are registers for
    float shift[V] = {}, more[V] = {};
    if (args.bias) load(static_cast<const T*>(args.bias) + lane.channel, shift);
    if (args.embedding)
        load(static_cast<const T*>(args.embedding) + static_cast<size_t>(lane.image) * args.channels + lane.channel, more);
#pragma unroll
    for (int k = 0; k < V; ++k) shift[k] += more[k];
    const Quad* const skip = static_cast<const Quad*>(args.skip) + lane.base;
    Quad* const sum = static_cast<Quad*>(args.sum) + lane.base;
    uint32_t at = lane.at + first * lane.step;
#pragma unroll
    for (int batch = 0; batch < R; batch += kBatch) {
        Quad others[kBatch] = {};
        uint32_t ahead = at;
#pragma unroll
        for (int r = 0; r < kBatch; ++r, ahead += lane.step)
            if (args.skip && batch + r < valid) others[r] = skip[ahead];
#pragma unroll
        for (int r = 0; r < kBatch; ++r, at += lane.step) {
            if (batch + r >= valid) continue;
            float x[V], other[V];
            unpack(rows[batch + r], x);
            unpack(others[r], other);
#pragma unroll
            for (int k = 0; k < V; ++k) x[k] = x[k] + other[k] + shift[k];
            rows[batch + r] = pack(x);
            if (args.sum) sum[at] = rows[batch + r];
        }
    }
}

// S again, when the lane could not keep it: from S if it was stored, by the same lane, else computed anew.
template <class T, int R>
SDORT_INLINE int fetch_again(const Args& args, const Lane& lane, int first, int end, Quad (&rows)[R]) {
    if (args.sum) {
        const Quad* const sum = static_cast<const Quad*>(args.sum) + lane.base;
        return fetch(args, lane, sum, lane.at, lane.step, first, end, rows);
    }
    const int valid = fetch(args, lane, lane.source, 0, lane.source_step, first, end, rows);
    if (adds(args)) add<T>(args, lane, first, valid, rows);
    return valid;
}

template <int V>
struct Affine {
    float mean[V], scale[V], beta[V];
};

template <class T, bool Streaming>
SDORT_INLINE void emit(const Args& args, const Affine<kVector<T>>& affine, const Quad& row, Quad* target) {
    constexpr int V = kVector<T>;
    float y[V];
    unpack(row, y);
#pragma unroll
    for (int k = 0; k < V; ++k) y[k] = fmaf(y[k] - affine.mean[k], affine.scale[k], affine.beta[k]);
    if (args.silu) activate(y);
    if constexpr (Streaming) {
        store_streaming(target, pack(y));
    } else {
        *target = pack(y);
    }
}

}  // namespace sdort::group_norm
