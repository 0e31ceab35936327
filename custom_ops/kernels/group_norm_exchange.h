// Blocks that share a group tell each other their part of its statistics, within one launch.
//
// A part is two words, each a float beside the mark of the launch: a word that shows this launch's mark holds this
// launch's value, so there is no flag, no fence, no atomic on the way, and nothing to clear (NCCL's LL protocol does
// likewise). The mark comes from a counter in the workspace that every launch moves on by kLaunch, whatever its grid: a
// captured graph replays, and kernels of several shapes take turns, on one workspace. Launches on it must not overlap.
// A mark comes back after 2^32 launches.
//
// The blocks of a slab must be resident together: the geometry asks for no more blocks than the device holds at a time,
// and numbers those of one slab consecutively, so that they start together even beside another stream's kernels.
#pragma once

#include "group_norm.h"
#include "group_norm_moments.h"

namespace sdort::group_norm {

// As early as possible, for the first thread of each block: the answer takes a trip to memory, and whoever touches it
// waits, so mark_of() is for later.
SDORT_INLINE uint64_t join(const Args& args) {
    const uint32_t blocks = args.splits * args.slabs;
    const bool first = block_index() == 0 && block_index_y() == 0;
    return ticket(args.workspace, first ? kLaunch - (blocks - 1) : 1, args.splits > 1 && thread_index() == 0);
}

SDORT_INLINE uint32_t mark_of(uint64_t joined) { return static_cast<uint32_t>(joined / kLaunch) + 1; }

SDORT_INLINE uint64_t word(float value, uint32_t mark) {
    return static_cast<uint64_t>(mark) << 32 | static_cast<uint32_t>(bits(value));
}

// Of parts [2 * i] and [2 * i + 1] by two lanes, so both leave at once.
SDORT_INLINE void publish(uint64_t* parts, int index, const Moments& part, uint32_t mark) {
    const int lane = lane_index();
    if (lane < 2) store_word(parts + 2 * index + lane, word(lane == 0 ? part.mean : part.m2, mark));
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

// All lanes of a wave: the whole slab's moments of a group, part of which each of args.splits blocks has published.
SDORT_INLINE Moments gather(const Args& args, const uint64_t* parts, int group, uint32_t mark) {
    const auto part = [&](int split) {
        const int first = split * args.split_rows, end = first + args.split_rows;
        const int rows = (end < args.hw ? end : args.hw) - first;
        return await(parts, split * args.tile_groups + group, mark, static_cast<float>(rows) * args.group_channels);
    };
    const int lane = lane_index();
    const Moments mine = lane < args.splits ? part(lane) : Moments{0.0f, 0.0f, 0.0f};
    return merge(args.splits, mine, part);
}

}  // namespace sdort::group_norm
