// The fast variant in two launches, for slabs of several blocks that must not wait for each other: any number of them, on a
// device that has room for one, beside anything else.
//
//   measure   reads rows, and S is stored if it is wanted; a block leaves its part of each group's statistics in the workspace
//   apply     reads the rows again while a wave a group merges the slab's parts, then normalizes. Blocks, and the rows of a
//             lane, go from the end: what was read last may still be in the cache.
#pragma once

#include "rows.h"

namespace sdort::group_norm {

template <class T>
SDORT_INLINE void measure_body(const Args& args) {
    using Block = Entries<T, kTwoThreads>;
    SDORT_SHARED(float, values, 3 * Block::kCount);
    const Block entries{values};
    Fast<T, kTwoThreads, kTwoRows, 0> fast{args, lane_of<T>(args, slab_of(args), split_of(args)), args.steps, nullptr, {}, 0};
    const Lane& lane = fast.lane;
    Sum sums[kVector<T>];
    const float count = fast.measure(sums, [] {});
    put_sums<T, kTwoThreads>(args, lane, sides_of<kVector<T>>(args, lane), sums, count, entries);
    block_barrier();
    each_group<kTwoThreads>(args, [&](int group) {
        store_part(args, lane.slab, group, lane.split, entries.merged(args, group));
    });
}

template <class T>
SDORT_INLINE void apply_body(const Args& args) {
    constexpr int V = kVector<T>;
    SDORT_SHARED(float, statistics, 3 * kMostGroups);
    SDORT_SHARED(float, weights, 2 * kMostChannels);
    const int slab = args.slabs - 1 - slab_of(args), split = args.splits - 1 - split_of(args);
    Fast<T, kTwoThreads, kTwoRows, 0> fast{args, lane_of<T>(args, slab, split), args.steps, nullptr, {}, 0};
    const Lane& lane = fast.lane;
    const Weights<kTwoThreads> own(args, lane.slab - lane.image * args.tiles, args.lanes * V);
    fast.fetch_last();
    each_group<kTwoThreads>(args, [&](int group) { write(args, group, load_parts<T>(args, slab, group), statistics); });
    own.put(weights);
    block_barrier();
    const Sides sides = sides_of<V>(args, lane);
    fast.normalize(affine_of<V>(sides, statistics, weights + lane.column * V, weights + kMostChannels + lane.column * V));
}

SDORT_KERNEL_RESIDENT(group_norm_f16_measure, kTwoThreads, kTwoBlocks, Args, measure_body<half>)
SDORT_KERNEL_RESIDENT(group_norm_f32_measure, kTwoThreads, kTwoBlocks, Args, measure_body<float>)
SDORT_KERNEL_RESIDENT(group_norm_f16_apply, kTwoThreads, kTwoBlocks, Args, apply_body<half>)
SDORT_KERNEL_RESIDENT(group_norm_f32_apply, kTwoThreads, kTwoBlocks, Args, apply_body<float>)

}  // namespace sdort::group_norm
