// From the sums of a block's lanes to the statistics of its groups.
#pragma once

#include "group_norm_exchange.h"
#include "group_norm_lane.h"

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

// The lane's channels of one side together.
template <int V>
SDORT_INLINE Moments side(const Sum (&sums)[V], float count, int boundary, bool first) {
    const float base = first ? sums[0].pivot : sums[V - 1].pivot;
    const float channels = static_cast<float>(first ? (boundary < V ? boundary : V) : V - boundary);
    float distance = 0.0f, square = 0.0f;
#pragma unroll
    for (int k = 0; k < V; ++k)
        if ((k < boundary) == first) distance += sums[k].pivot - base;
    const float mean = base + distance * fast_rcp(channels);
#pragma unroll
    for (int k = 0; k < V; ++k) {
        const float d = sums[k].pivot - mean;
        if ((k < boundary) == first) square += fmaf(count * d, d, sums[k].square);
    }
    return {count * channels, mean, square};
}

// Lanes' moments in shared memory, those of one group side by side.
template <int V, int Threads>
struct Entries {
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
        return merge(count, lane_index() < count ? entry(lane_index()) : Moments{0.0f, 0.0f, 0.0f}, entry);
    }
};

SDORT_INLINE uint64_t* parts_of(const Args& args, const Lane& lane) {
    return args.workspace + kParts + static_cast<size_t>(lane.slab) * (args.splits + args.teams) * args.tile_groups * 2;
}

// mean, its rest and 1 / std.
SDORT_INLINE void write(const Args& args, int group, const Moments& all, float* statistics) {
    if (lane_index() != 0) return;
    statistics[3 * group] = all.mean;
    statistics[3 * group + 1] = all.mean_low;
    statistics[3 * group + 2] = fast_rsqrt(all.m2 / all.count + args.epsilon);
}

// A wave each: the tile's groups, of which `entries` are complete and visible. With one block a slab that is all; else it
// tells the others.
template <class Entries, int Threads, bool Many>
SDORT_INLINE void merge_block(const Args& args, const Lane& lane, const Entries& entries, uint32_t mark, float* statistics) {
    for (int group = thread_index() / kWave; group < args.tile_groups; group += Threads / kWave) {
        const Moments block = entries.merged(args, group);
        if (args.splits == 1) {
            write(args, group, block, statistics);
        } else {
            publish(parts_of(args, lane), part_index<Many>(args, group, lane.split), block, mark);
        }
    }
}

// Then, with several: their answers.
template <int Threads, bool Many>
SDORT_INLINE void merge_slab(const Args& args, const Lane& lane, uint32_t mark, float* statistics) {
    if (args.splits == 1) return;
    if (Many && args.teams > 0 && lane.split % args.team_splits == 0) {
        for (int group = thread_index() / kWave; group < args.tile_groups; group += Threads / kWave)
            publish_team(args, parts_of(args, lane), group, lane.split, mark);
    }
    for (int group = thread_index() / kWave; group < args.tile_groups; group += Threads / kWave)
        write(args, group, gather<Many>(args, parts_of(args, lane), group, mark), statistics);
}

}  // namespace sdort::group_norm
