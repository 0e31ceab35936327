// Statistics of a slab that several blocks share: each has a part of its groups' moments.
//
// A part is a mean and a sum of squared distances to it; its count follows from the block's rows.
#pragma once

#include "group_norm.h"
#include "moments.h"

namespace sdort::group_norm {

// All lanes of a wave: `count` parts of a group together, Batch a lane at most, of `rows` rows each and `all_rows` in all.
// `mean` and `m2` are those of parts lane_index() + i * kWave, anything where there is none.
template <class T, int Batch>
SDORT_INLINE Moments merge_rows(int count, int rows, int all_rows, int channels, const float (&mean)[Batch],
                                const float (&m2)[Batch]) {
    Moments all[Batch];
#pragma unroll
    for (int i = 0; i < Batch; ++i) {
        const int part = lane_index() + i * kWave, left = all_rows - part * rows;
        const int own = part < count ? (left < rows ? left : rows) : 0;
        all[i] = {static_cast<float>(own) * channels, own > 0 ? mean[i] : 0.0f, own > 0 ? m2[i] : 0.0f};
    }
    return merge<T>(all);
}

// Of two launches: parts of a group lie side by side, groups of a slab after each other. A part is what it is where blocks
// exchange them (exchange.h), mean and m2 below a mark each, but the mark is that of no launch, 0: whatever ran
// last on this workspace, nobody takes another's numbers for his own launch's.
SDORT_INLINE Quad* parts_of(const Args& args, int slab, int group) {
    return reinterpret_cast<Quad*>(args.workspace + kParts) +
           (static_cast<size_t>(slab) * args.tile_groups + group) * args.splits;
}

SDORT_INLINE void store_part(const Args& args, int slab, int group, int split, const Moments& part) {
    if (lane_index() != 0) return;
    const Quad words{{static_cast<uint32_t>(bits(part.mean)), 0, static_cast<uint32_t>(bits(part.m2)), 0}};
    store_quad(parts_of(args, slab, group) + split, words);
}

// All lanes of a wave: the slab's moments of a group, from the parts that the launch before this one has stored.
template <class T>
SDORT_INLINE Moments load_parts(const Args& args, int slab, int group) {
    const Quad* const parts = parts_of(args, slab, group);
    float mean[kBatch], m2[kBatch];
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
        const int part = lane_index() + i * kWave;
        const Quad words = parts[part < args.splits ? part : 0];
        mean[i] = real(static_cast<int>(words.words[0]));
        m2[i] = real(static_cast<int>(words.words[2]));
    }
    return merge_rows<T>(args.splits, args.split_rows, args.hw, args.group_channels, mean, m2);
}

}  // namespace sdort::group_norm
