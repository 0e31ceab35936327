// The fast variant where a block has a whole slab: vectors of 16 bytes, every element read once if registers hold them.
//
//   1. read rows; a lane sums each of its channels up; the last R rows stay in registers
//   2. the block merges its lanes' sums group by group, a wave each
//   3. normalize what is in registers, then read the rest again, from the end: the last ones may still be in the cache
#pragma once

#include "rows.h"

namespace sdort::group_norm {

template <class T, int Threads, int R>
SDORT_INLINE void alone_body(const Args& args) {
    constexpr int V = kVector<T>;
    SDORT_SHARED(float, values, 3 * (Entries<T, Threads>::kCount));
    SDORT_SHARED(float, statistics, 3 * kMostGroups);
    SDORT_SHARED(float, weights, 2 * kMostChannels);
    const Entries<T, Threads> entries{values};
    Fast<T, Threads, R, 0> fast{args, lane_of<T>(args, block_index(), 0), args.steps, nullptr, {}, 0};
    const Lane& lane = fast.lane;
    const Weights<Threads> own(args, lane.slab - lane.image * args.tiles, args.lanes * V);
    Sum sums[V];
    const float count = fast.measure(sums, [] {});
    const Sides sides = sides_of<V>(args, lane);
    put_sums<T, Threads>(args, lane, sides, sums, count, entries);
    own.put(weights);
    block_barrier();
    each_group<Threads>(args, [&](int group) { write(args, group, entries.merged(args, group), statistics); });
    block_barrier();
    fast.normalize(affine_of<V>(sides, statistics, weights + lane.column * V, weights + kMostChannels + lane.column * V));
}

// Threads, rows in registers, blocks that a compute unit must hold.
#define SDORT_GROUP_NORM_ALONE(threads, rows, blocks)                                                                     \
    SDORT_KERNEL_RESIDENT(group_norm_f16_alone_##threads##_##rows, threads, blocks, Args, (alone_body<half, threads, rows>)) \
    SDORT_KERNEL_RESIDENT(group_norm_f32_alone_##threads##_##rows, threads, blocks, Args, (alone_body<float, threads, rows>))

SDORT_GROUP_NORM_ALONE(256, 4, 2)
SDORT_GROUP_NORM_ALONE(256, 8, 2)
SDORT_GROUP_NORM_ALONE(512, 4, 1)
SDORT_GROUP_NORM_ALONE(512, 8, 1)
SDORT_GROUP_NORM_ALONE(512, 16, 1)

}  // namespace sdort::group_norm
