// Blocks that share a group tell each other their part of its statistics, within one launch.
//
// A part is two words, each a float beside the mark of the launch: a word that shows this launch's mark holds this
// launch's value, so there is no flag, no fence, no atomic on the way, and nothing to clear (NCCL's LL protocol does
// likewise). The mark comes from a counter in the workspace that every launch moves on by kLaunch, whatever its grid: a
// captured graph replays, and kernels of several shapes take turns, on one workspace. Launches on it must not overlap.
// A mark comes back after 2^32 launches.
//
// The launch is cooperative: the driver has all of its blocks on the device together, beside whatever else runs there, or
// refuses. Only NVIDIA's does so at no cost worth telling (geometry.h: two launches elsewhere).
#pragma once

#include "group_norm.h"
#include "parts.h"

namespace sdort::group_norm {

// As early as possible, for the first thread of each block: the answer takes a trip to memory, and whoever touches it
// waits, so mark_of() is for later.
SDORT_INLINE uint64_t join(const Args& args) {
    const uint32_t blocks = args.splits * args.launch_slabs;
    const bool first = block_index() == 0 && block_index_y() == 0;
    return ticket(args.workspace, first ? kLaunch - (blocks - 1) : 1, thread_index() == 0);
}

SDORT_INLINE uint32_t mark_of(uint64_t joined) { return static_cast<uint32_t>(joined / kLaunch) + 1; }

SDORT_INLINE uint64_t word(float value, uint32_t mark) {
    return static_cast<uint64_t>(mark) << 32 | static_cast<uint32_t>(bits(value));
}

SDORT_INLINE float value_of(uint64_t word) { return real(static_cast<int>(static_cast<uint32_t>(word))); }

// Of parts [2 * i] and [2 * i + 1] by two lanes, so both leave at once.
SDORT_INLINE void publish(uint64_t* parts, int index, const Moments& part, uint32_t mark) {
    const int lane = lane_index();
    if (lane < 2) store_word(parts + 2 * index + lane, word(lane == 0 ? part.mean : part.m2, mark));
}

// Many: there may be more parts than lanes. Then neighbours in memory belong to one group, as a wave reads them together;
// otherwise to one block. Parts of teams follow those of blocks.
template <bool Many>
SDORT_INLINE int part_index(const Args& args, int group, int split) {
    return Many ? group * (args.splits + args.teams) + split : split * args.tile_groups + group;
}

// All lanes of a wave: `count` parts of a group together, Batch a lane at most, of `rows` rows each and `all_rows` in all.
// All of them are on their way together, as a trip to memory takes most of a microsecond.
template <class T, int Batch>
SDORT_INLINE Moments gather_batch(const uint64_t* parts, int count, int rows, int all_rows, int channels, uint32_t mark) {
    uint64_t means[Batch], squares[Batch];
#pragma unroll
    for (int i = 0; i < Batch; ++i) means[i] = squares[i] = word(0.0f, ~mark);
    bool missing = true;
    while (missing) {
        missing = false;
#pragma unroll
        for (int i = 0; i < Batch; ++i) {
            const int part = lane_index() + i * kWave;
            const bool there = part >= count || (means[i] >> 32 == mark && squares[i] >> 32 == mark);
            if (!there) load_words(parts + 2 * part, means[i], squares[i]);
        }
#pragma unroll
        for (int i = 0; i < Batch; ++i)
            missing |= lane_index() + i * kWave < count && (means[i] >> 32 != mark || squares[i] >> 32 != mark);
        if (missing) pause();
    }
    float mean[Batch], m2[Batch];
#pragma unroll
    for (int i = 0; i < Batch; ++i) {
        mean[i] = value_of(means[i]);
        m2[i] = value_of(squares[i]);
    }
    return merge_rows<T>(count, rows, all_rows, channels, mean, m2);
}

// The first block of a team: what the team's blocks have published is one part.
template <class T>
SDORT_INLINE void publish_team(const Args& args, uint64_t* parts, int group, int split, uint32_t mark) {
    const int team = split / args.team_splits, left = args.splits - split;
    const int count = left < args.team_splits ? left : args.team_splits;
    const int rows = count * args.split_rows, rest = args.hw - split * args.split_rows;
    const Moments all = gather_batch<T, 1>(parts + 2 * part_index<true>(args, group, split), count, args.split_rows,
                                        rest < rows ? rest : rows, args.group_channels, mark);
    publish(parts, part_index<true>(args, group, args.splits + team), all, mark);
}

SDORT_INLINE Moments await(const uint64_t* parts, int index, uint32_t mark, float count) {
    uint64_t mean = load_word(parts + 2 * index), m2 = load_word(parts + 2 * index + 1);
    while (mean >> 32 != mark || m2 >> 32 != mark) {
        pause();
        mean = load_word(parts + 2 * index);
        m2 = load_word(parts + 2 * index + 1);
    }
    return {count, real(static_cast<int>(static_cast<uint32_t>(mean))), real(static_cast<int>(static_cast<uint32_t>(m2)))};
}

// All lanes of a wave: the whole slab's moments of a group, of which each of args.splits blocks has published its part.
template <class T, bool Many>
SDORT_INLINE Moments gather(const Args& args, const uint64_t* parts, int group, uint32_t mark) {
    if constexpr (Many) {
        const bool teams = args.teams > 0;
        return gather_batch<T, kBatch>(parts + 2 * part_index<true>(args, group, teams ? args.splits : 0),
                                    teams ? args.teams : args.splits, args.split_rows * (teams ? args.team_splits : 1),
                                    args.hw, args.group_channels, mark);
    } else {
        const auto part = [&](int split) {
            const int first = split * args.split_rows, end = first + args.split_rows;
            const int rows = (end < args.hw ? end : args.hw) - first;
            return await(parts, part_index<false>(args, group, split), mark, static_cast<float>(rows) * args.group_channels);
        };
        const int lane = lane_index();
        const Moments mine = lane < args.splits ? part(lane) : Moments{0.0f, 0.0f, 0.0f};
        return merge<T>(args.splits, mine, part);
    }
}

SDORT_INLINE uint64_t* exchanged_parts(const Args& args, int slab) {
    return args.workspace + kParts + static_cast<size_t>(slab) * (args.splits + args.teams) * args.tile_groups * 2;
}

}  // namespace sdort::group_norm
