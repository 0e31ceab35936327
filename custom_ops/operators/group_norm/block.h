// From the sums of a block's lanes to the statistics of its groups.
#pragma once

#include "lane.h"
#include "parts.h"

namespace sdort::group_norm {

// The groups that a lane's vector touches, two at most: which channels are whose.
struct Sides {
    int group;     // of the first channel, counted in the tile
    int boundary;  // channels that belong to it; those from here on belong to the next one
};

template <int V>
SDORT_INLINE Sides sides_of(const Args& args, const Lane& lane) {
    const int channel = lane.column * V, group = channel * args.group_inverse >> 16;
    return {group, (group + 1) * args.group_channels - channel};
}

// The lane's channels of each side together; `count` values a channel, whose sums are settled.
template <class T>
SDORT_INLINE void merge_sides(const Sum (&sums)[kVector<T>], float count, int boundary, Moments (&sides)[2]) {
    constexpr int V = kVector<T>;
    const float base[2] = {sums[0].pivot, sums[V - 1].pivot};
    Together all[2] = {{base[0]}, {base[1]}};
#pragma unroll
    for (int k = 0; k < V; ++k) {
        const Moments channel{count, sums[k].pivot, sums[k].square};
        k < boundary ? all[0].add(channel) : all[1].add(channel);
    }
    float mean[2];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
        const float distance = all[i].n > 0.0f ? all[i].sum * fast_rcp(all[i].n) : 0.0f;  // a lane may have no rows
        mean[i] = base[i] + distance;
        all[i].square = fmaf(-all[i].sum, distance, all[i].square);
    }
    if constexpr (kSecondPass<T>) {
        Together again[2] = {{mean[0]}, {mean[1]}};
#pragma unroll
        for (int k = 0; k < V; ++k) {
            const Moments channel{count, sums[k].pivot, sums[k].square};
            k < boundary ? again[0].add(channel) : again[1].add(channel);
        }
        all[0].square = again[0].square;
        all[1].square = again[1].square;
    }
    sides[0] = {all[0].n, mean[0], all[0].square};
    sides[1] = {all[1].n, mean[1], all[1].square};
}

// Lanes' moments in shared memory, those of one group side by side.
template <class T, int Threads>
struct Entries {
    static constexpr int V = kVector<T>;
    static constexpr int kCount = 3 * Threads;  // a lane has one or two; rounding up to group_lanes needs up to 2.67
    float* values;

    // First vector of a group in a tile's row, and how many it touches.
    SDORT_INLINE static int first_lane(const Args& args, int group) { return group * args.group_channels / V; }
    SDORT_INLINE static int lanes(const Args& args, int group) {
        return ((group + 1) * args.group_channels - 1) / V - first_lane(args, group) + 1;
    }
    SDORT_INLINE void put(const Args& args, const Lane& lane, int group, const Moments& moments) const {
        const int i = group * args.step_rows * args.group_lanes + lane.row * lanes(args, group) + lane.column -
                      first_lane(args, group);
        values[i] = moments.count;
        values[kCount + i] = moments.mean;
        values[2 * kCount + i] = moments.m2;
    }
    SDORT_INLINE Moments merged(const Args& args, int group) const {
        const float* const own = values + group * args.step_rows * args.group_lanes;
        const int count = args.step_rows * lanes(args, group);
        const auto entry = [&](int i) { return Moments{own[i], own[kCount + i], own[2 * kCount + i]}; };
        return merge<T>(count, lane_index() < count ? entry(lane_index()) : Moments{0.0f, 0.0f, 0.0f}, entry);
    }
};

// mean, its rest and 1 / std.
SDORT_INLINE void write(const Args& args, int group, const Moments& all, float* statistics) {
    if (lane_index() != 0) return;
    statistics[3 * group] = all.mean;
    statistics[3 * group + 1] = all.mean_low;
    statistics[3 * group + 2] = fast_rsqrt(all.m2 / all.count + args.epsilon);
}

// body(group) for the tile's groups, a wave each.
template <int Threads, class Body>
SDORT_INLINE void each_group(const Args& args, Body body) {
#pragma unroll 1
    for (int group = wave_of(thread_index()); group < args.tile_groups; group += Threads / kWave) body(group);
}

}  // namespace sdort::group_norm
