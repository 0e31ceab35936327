// The fast variant: vectors of 16 bytes, every element read once where registers and shared memory hold them.
//
//   1. read rows; a lane sums each of its channels up; the last R rows stay in registers, up to K before them in shared memory
//   2. the block merges its lanes' sums group by group, a wave each; blocks of one slab exchange theirs (group_norm_exchange.h)
//   3. normalize what is in registers, then read the rest again, from the end: the last ones may still be in the cache;
//      then what is in shared memory
//
// Where a slab fits, but not all slabs together, the launch has a grid of all: as blocks end, those of later slabs follow.
#pragma once

#include "group_norm_block.h"

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
    uint64_t joined;  // the first thread's, to tell the launch's mark

    SDORT_INLINE int last() const { return steps > R ? steps - R : 0; }            // first step in registers
    SDORT_INLINE int shelved() const { return last() > K ? last() - K : 0; }  // first step in shared memory

    // First row of the block that is not in the steps before this one.
    SDORT_INLINE int below(int step) const {
        const int row = step * args.step_rows;
        return lane.rows < row ? lane.rows : row;
    }

    // Reads everything, the last steps into `rows`, and leaves each channel's mean and squares in `sums`. Returns the rows.
    SDORT_INLINE float measure(Sum (&sums)[V]) {
        int count = 0, first = 0, next = steps > R ? (steps - 1) % R + 1 : steps;  // the first chunk takes what others leave
        while (true) {
            const int end = below(next);
            if (K > 0 && first >= shelved()) {
                valid = fetch<R, (K > 0)>(args, lane, lane.source, 0, lane.source_step, first, end, rows);
            } else {
                valid = fetch(args, lane, lane.source, 0, lane.source_step, first, end, rows);
            }
            // The answer comes with the rows.
            if (first == 0) joined = join(args);
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
            gamma[i] = c < channels ? args.gamma[tile * channels + c] : 0.0f;
            beta[i] = c < channels ? args.beta[tile * channels + c] : 0.0f;
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

// While blocks wait for each other: the first rows of the slab that comes when this one is done, into the cache. A lane asks
// for whole rows of the tile, its own share of them, as a row is a cache line. More than three eighths would push others out.
template <class T>
SDORT_INLINE void fetch_ahead(const Args& args, const Lane& lane) {
    if (lane.slab + args.ahead >= args.slabs) return;
    const Lane next = lane_of<T>(args, lane.slab + args.ahead);
    for (int s = lane.column; s < args.steps * 3 / 8; s += args.lanes)
        if (lane.row + s * args.step_rows < lane.rows) prefetch(next.source + static_cast<size_t>(s) * next.source_step);
}

template <class T, int Threads, int R, int K>
SDORT_INLINE void fast_body(const Args& args) {
    constexpr int V = kVector<T>;
    constexpr bool kMany = K > 0;  // as that variant has many blocks a slab; the others mostly have few
    using Block = Entries<T, Threads>;
    SDORT_SHARED(float, values, 3 * Block::kCount);
    SDORT_SHARED(float, statistics, 3 * kMostGroups);
    SDORT_SHARED(float, weights, 2 * kMostChannels);
    SDORT_SHARED(uint32_t, mark, 1);
    SDORT_SHARED(Quad, shelf, K > 0 ? K * Threads : 1);
    Fast<T, Threads, R, K> fast{args, lane_of<T>(args, slab_of(args)), args.steps, shelf, {}, 0, 0};
    const Lane& lane = fast.lane;
    const Weights<Threads> own(args, lane.slab - lane.image * args.tiles, args.lanes * V);
    Sum sums[V];
    const float count = fast.measure(sums);
    if (kMany && args.ahead > 0) fetch_ahead<T>(args, lane);
    const Sides sides = sides_of<V>(args, lane);
    const Block entries{values};
    if (lane.row != kNoRow) {
        Moments parts[2];
        merge_sides<T>(sums, count, sides.boundary, parts);
        entries.put(args, lane, sides.group, parts[0]);
        if (sides.boundary < V) entries.put(args, lane, sides.group + 1, parts[1]);
    }
    own.put(weights);
    if (thread_index() == 0) mark[0] = mark_of(fast.joined);
    block_barrier();
    merge_block<Block, Threads, kMany>(args, lane, entries, mark[0], statistics);
    merge_slab<T, Threads, kMany>(args, lane, mark[0], statistics);
    block_barrier();
    fast.normalize(affine_of<V>(sides, statistics, weights + lane.column * V, weights + kMostChannels + lane.column * V));
}

// Threads, rows in registers, rows in shared memory, blocks that a compute unit must hold.
#define SDORT_GROUP_NORM(threads, rows, kept, blocks)                                                                      \
    SDORT_KERNEL_RESIDENT(group_norm_f16_##threads##_##rows##_##kept, threads, blocks, Args, (fast_body<half, threads, rows, kept>)) \
    SDORT_KERNEL_RESIDENT(group_norm_f32_##threads##_##rows##_##kept, threads, blocks, Args, (fast_body<float, threads, rows, kept>))

SDORT_GROUP_NORM(256, 4, 0, 2)
SDORT_GROUP_NORM(256, 8, 0, 2)
SDORT_GROUP_NORM(512, 4, 0, 1)
SDORT_GROUP_NORM(512, 8, 0, 1)
SDORT_GROUP_NORM(512, 16, 0, 1)
SDORT_GROUP_NORM(128, 12, 20, 4)

}  // namespace sdort::group_norm
