// The fast variant where several blocks have a slab, and exchange its statistics in one launch (exchange.h): as the
// variant of one block, but every element is read once where the registers and shared memory of all of them hold a slab.
//
// Blocks wait for each other, so the launch is cooperative. Where not all slabs fit on the device together, a launch has as
// many as do. (A loop over slabs would keep more in registers than a lane has.)
#pragma once

#include "device/device.h"

#if SDORT_COOPERATIVE

#include "exchange.h"
#include "rows.h"

namespace sdort::group_norm {

// While blocks wait for each other: the first rows of the slab that the next launch has in this place, into the cache. A lane
// asks for whole rows of the tile, its own share of them, as a row is a cache line. More than three eighths would push others
// out.
template <class T>
SDORT_INLINE void fetch_ahead(const Args& args, const Lane& lane) {
    const int slab = lane.slab + args.launch_slabs;
    if (slab >= args.slabs) return;
    const Lane next = lane_of<T>(args, slab, lane.split);
    for (int s = lane.column; s < args.steps * 3 / 8; s += args.lanes)
        if (lane.row + s * args.step_rows < lane.rows) prefetch(next.source + static_cast<size_t>(s) * next.source_step);
}

// A wave each: what the block's lanes have summed up goes to the other blocks, and theirs comes back.
template <class T, int Threads, bool Many>
SDORT_INLINE void exchange(const Args& args, const Lane& lane, const Entries<T, Threads>& entries, uint32_t mark,
                           float* statistics) {
    uint64_t* const parts = exchanged_parts(args, lane.slab);
    each_group<Threads>(args, [&](int group) {
        publish(parts, part_index<Many>(args, group, lane.split), entries.merged(args, group), mark);
    });
    if (Many && args.teams > 0 && lane.split % args.team_splits == 0)
        each_group<Threads>(args, [&](int group) { publish_team<T>(args, parts, group, lane.split, mark); });
    each_group<Threads>(args, [&](int group) { write(args, group, gather<T, Many>(args, parts, group, mark), statistics); });
}

template <class T, int Threads, int R, int K>
SDORT_INLINE void together_body(const Args& args) {
    constexpr int V = kVector<T>;
    constexpr bool kMany = K > 0;  // blocks a slab; the other instances mostly have few
    SDORT_SHARED(float, values, 3 * (Entries<T, Threads>::kCount));
    SDORT_SHARED(float, statistics, 3 * kMostGroups);
    SDORT_SHARED(float, weights, 2 * kMostChannels);
    SDORT_SHARED(uint32_t, mark, 1);
    SDORT_SHARED(Quad, shelf, K > 0 ? K * Threads : 1);
    const Entries<T, Threads> entries{values};
    const int slab = args.first_slab + block_index_y();
    Fast<T, Threads, R, K> fast{args, lane_of<T>(args, slab, block_index()), args.steps, shelf, {}, 0};
    const Lane& lane = fast.lane;
    const Weights<Threads> own(args, lane.slab - lane.image * args.tiles, args.lanes * V);
    Sum sums[V];
    uint64_t joined = 0;
    const float count = fast.measure(sums, [&] { joined = join(args); });  // the answer comes with the rows
    if (kMany) fetch_ahead<T>(args, lane);
    const Sides sides = sides_of<V>(args, lane);
    put_sums<T, Threads>(args, lane, sides, sums, count, entries);
    own.put(weights);
    if (thread_index() == 0) mark[0] = mark_of(joined);
    block_barrier();
    exchange<T, Threads, kMany>(args, lane, entries, mark[0], statistics);
    block_barrier();
    fast.normalize(affine_of<V>(sides, statistics, weights + lane.column * V, weights + kMostChannels + lane.column * V));
}

// Threads, rows in registers, rows in shared memory, blocks that a compute unit must hold.
#define SDORT_GROUP_NORM_TOGETHER(threads, rows, kept, blocks)                                           \
    SDORT_KERNEL_RESIDENT(group_norm_f16_together_##threads##_##rows##_##kept, threads, blocks, Args, \
                          (together_body<half, threads, rows, kept>))                                    \
    SDORT_KERNEL_RESIDENT(group_norm_f32_together_##threads##_##rows##_##kept, threads, blocks, Args, \
                          (together_body<float, threads, rows, kept>))

SDORT_GROUP_NORM_TOGETHER(256, 4, 0, 2)
SDORT_GROUP_NORM_TOGETHER(256, 8, 0, 2)
SDORT_GROUP_NORM_TOGETHER(512, 4, 0, 1)
SDORT_GROUP_NORM_TOGETHER(512, 8, 0, 1)
SDORT_GROUP_NORM_TOGETHER(512, 16, 0, 1)
SDORT_GROUP_NORM_TOGETHER(128, 12, 20, 4)

}  // namespace sdort::group_norm

#endif
