// A lane's rows, in registers and shared memory: measured, and normalized.
#pragma once

#include "block.h"

namespace sdort::group_norm {

template <int V>
SDORT_INLINE Affine<V> affine_of(const Sides& sides, const float* statistics, const float* gamma, const float* beta) {
    const float* const one = statistics + 3 * sides.group;
    const float* const other = sides.boundary < V ? one + 3 : one;
    const float mean[2] = {one[0], other[0]}, low[2] = {one[1], other[1]}, inverse[2] = {one[2], other[2]};
    Affine<V> affine;
#pragma unroll
    for (int k = 0; k < V; ++k) {
        const bool first = k < sides.boundary;
        affine.mean[k] = first ? mean[0] : mean[1];
        affine.scale[k] = gamma[k] * (first ? inverse[0] : inverse[1]);
        affine.beta[k] = fmaf(-(first ? low[0] : low[1]), affine.scale[k], beta[k]);
    }
    return affine;
}

// R rows of a lane in registers, K in shared memory.
template <class T, int Threads, int R, int K>
struct Fast {
    static constexpr int V = kVector<T>;

    const Args& args;
    Lane lane;
    int steps;  // rows of a lane, at most
    Quad* shelf;
    Quad rows[R];
    int valid;        // of `rows`, the first so many

    SDORT_INLINE int last() const { return steps > R ? steps - R : 0; }            // first step in registers
    SDORT_INLINE int shelved() const { return last() > K ? last() - K : 0; }  // first step in shared memory

    // First row of the block that is not in the steps before this one.
    SDORT_INLINE int below(int step) const {
        const int row = step * args.step_rows;
        return lane.rows < row ? lane.rows : row;
    }

    // Reads everything, the last steps into `rows`, and leaves each channel's mean and squares in `sums`. Returns the rows.
    // started() is called when the first loads are on their way.
    template <class Started>
    SDORT_INLINE float measure(Sum (&sums)[V], Started started) {
        int count = 0, first = 0, next = steps > R ? (steps - 1) % R + 1 : steps;  // the first chunk takes what others leave
        while (true) {
            const int end = below(next);
            if (K > 0 && first >= shelved()) {
                valid = fetch<R, (K > 0)>(args, lane, lane.source, 0, lane.source_step, first, end, rows);
            } else {
                valid = fetch(args, lane, lane.source, 0, lane.source_step, first, end, rows);
            }
            if (first == 0) started();
            if (adds(args) || args.sum) add<T>(args, lane, first, valid, rows);
            sum_up(first, sums);
            count += valid;
            if (next == steps) return static_cast<float>(count);
            if constexpr (K > 0) put_aside(first);
            first = next;
            next += R;
        }
    }

    SDORT_INLINE void sum_up(int first, Sum (&sums)[V]) {
        float x[V];
        if (first == 0) {
            unpack(rows[0], x);
#pragma unroll
            for (int k = 0; k < V; ++k) sums[k].start(x[k]);
        }
#pragma unroll
        for (int r = 0; r < R; ++r) {
            if (r >= valid) continue;
            unpack(rows[r], x);
#pragma unroll
            for (int k = 0; k < V; ++k) sums[k].add(x[k]);
        }
        if (valid == 0) return;
        const float count = static_cast<float>(first + valid), inverse = fast_rcp(count);
#pragma unroll
        for (int k = 0; k < V; ++k) sums[k].settle(count, inverse);
    }

    SDORT_INLINE void put_aside(int first) {
#pragma unroll
        for (int r = 0; r < R; ++r) {
            const int s = first + r;
            if (s >= shelved() && s < last()) shelf[(s - shelved()) * Threads + thread_index()] = rows[r];
        }
    }

    // The last steps, of which nothing was read yet.
    SDORT_INLINE void fetch_last() { valid = fetch_again<T>(args, lane, last(), lane.rows, rows); }

    SDORT_INLINE void normalize(const Affine<V>& affine) {
        constexpr bool kStreaming = K > 0;
        Quad* const y = static_cast<Quad*>(args.y) + lane.base;
        int first = last(), left = shelved();
        while (true) {
            uint32_t at = lane.at + first * lane.step;
#pragma unroll
            for (int r = 0; r < R; ++r, at += lane.step)
                if (r < valid) emit<T, kStreaming>(args, affine, rows[r], y + at);
            if (left == 0) break;
            first = left > R ? left - R : 0;
            valid = fetch_again<T>(args, lane, first, below(left), rows);
            left = first;
        }
        if constexpr (K > 0) {
            uint32_t at = lane.at + shelved() * lane.step;
            for (int s = shelved(); s < last() && lane.row + s * args.step_rows < lane.rows; ++s, at += lane.step)
                emit<T, kStreaming>(args, affine, shelf[(s - shelved()) * Threads + thread_index()], y + at);
        }
    }
};

// gamma and beta of the tile: on their way while the rows are read, in shared memory when they are needed.
template <int Threads>
struct Weights {
    static constexpr int kEach = (kMostChannels + Threads - 1) / Threads;
    float gamma[kEach], beta[kEach];

    SDORT_INLINE Weights(const Args& args, int tile, int channels) {
#pragma unroll
        for (int i = 0; i < kEach; ++i) {
            const int c = thread_index() + i * Threads;
            gamma[i] = c < channels ? affine_at(args, args.gamma, tile * channels + c) : 0.0f;
            beta[i] = c < channels ? affine_at(args, args.beta, tile * channels + c) : 0.0f;
        }
    }
    SDORT_INLINE void put(float* memory) const {
#pragma unroll
        for (int i = 0; i < kEach; ++i) {
            const int c = thread_index() + i * Threads;
            if (c >= kMostChannels) break;
            memory[c] = gamma[i];
            memory[kMostChannels + c] = beta[i];
        }
    }
};

// The lane's sums, group by group, in shared memory for merged().
template <class T, int Threads>
SDORT_INLINE void put_sums(const Args& args, const Lane& lane, const Sides& sides, const Sum (&sums)[kVector<T>], float count,
                           const Entries<T, Threads>& entries) {
    if (lane.row == kNoRow) return;
    Moments parts[2];
    merge_sides<T>(sums, count, sides.boundary, parts);
    entries.put(args, lane, sides.group, parts[0]);
    if (sides.boundary < kVector<T>) entries.put(args, lane, sides.group + 1, parts[1]);
}

}  // namespace sdort::group_norm
