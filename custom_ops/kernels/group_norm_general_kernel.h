// The general variant: any number of channels and groups, an element at a time. A slab is one group. It reads twice.
#pragma once

#include "group_norm_exchange.h"
#include "group_norm_silu.h"

namespace sdort::group_norm {

// S at a row of the whole batch; `embedding` is the image's.
template <class T>
SDORT_INLINE T summed(const Args& args, const T* embedding, int64_t row, int channel) {
    const int second = channel - args.x_channels;
    const T x = second < 0 ? static_cast<const T*>(args.x)[row * args.x_channels + channel]
                           : static_cast<const T*>(args.x2)[row * (args.channels - args.x_channels) + second];
    if (!args.skip && !args.bias && !args.embedding) return x;
    const float skip = args.skip ? widen(static_cast<const T*>(args.skip)[row * args.channels + channel]) : 0.0f;
    const float bias = args.bias ? widen(static_cast<const T*>(args.bias)[channel]) : 0.0f;
    const float shift = args.embedding ? widen(embedding[channel]) : 0.0f;
    return Narrow<T>::from(widen(x) + skip + (bias + shift));
}

// The part of one group that a block has.
struct Part {
    int64_t row;  // first one, of the whole batch
    int rows;
    int image;
    int group;
    int slab;
    int split;
};

SDORT_INLINE Part part_of(const Args& args) {
    const int slab = args.splits == 1 ? block_index() : block_index_y();
    const int split = args.splits == 1 ? 0 : block_index();
    const int image = slab / args.tiles;
    const int first = split * args.split_rows, left = args.hw - first;
    return {static_cast<int64_t>(image) * args.hw + first, left < args.split_rows ? left : args.split_rows,
            image, slab - image * args.tiles, slab, split};
}

template <class T>
SDORT_INLINE Moments sum_up(const Args& args, const Part& part, const T* embedding) {
    const int64_t elements = static_cast<int64_t>(part.rows) * args.group_channels;
    Sum sum{0.0f, 0.0f, 0.0f};
    int count = 0;
    for (int64_t i = thread_index(); i < elements; i += kGeneralThreads) {
        const int row = static_cast<int>(i / args.group_channels);
        const int channel = part.group * args.group_channels + static_cast<int>(i - static_cast<int64_t>(row) * args.group_channels);
        const T value = summed(args, embedding, part.row + row, channel);
        if (args.sum) static_cast<T*>(args.sum)[(part.row + row) * args.channels + channel] = value;
        if (count == 0) sum.start(widen(value));
        sum.add(widen(value));
        count += 1;
        if (count % 16 == 0) sum.settle(static_cast<float>(count), 1.0f / count);
    }
    if (count > 0) sum.settle(static_cast<float>(count), 1.0f / count);
    return {static_cast<float>(count), sum.pivot, sum.square};
}

// Of all threads of the block; then, if there are several blocks, of the whole slab. The first wave's answer.
template <class T>
SDORT_INLINE Moments all_of(const Args& args, const Part& part, const Moments& mine) {
    SDORT_SHARED(float, entries, 3 * kGeneralThreads);
    SDORT_SHARED(uint32_t, mark, 1);
    const int thread = thread_index();
    const uint64_t joined = join(args);
    if (thread == 0) mark[0] = mark_of(joined);
    entries[thread] = mine.count;
    entries[kGeneralThreads + thread] = mine.mean;
    entries[2 * kGeneralThreads + thread] = mine.m2;
    block_barrier();
    if (thread >= kWave) return mine;
    const Moments block = merge<T>(kGeneralThreads, mine, [&](int i) {
        return Moments{entries[i], entries[kGeneralThreads + i], entries[2 * kGeneralThreads + i]};
    });
    if (args.splits == 1) return block;
    uint64_t* parts = args.workspace + kParts + static_cast<int64_t>(part.slab) * args.splits * 2;
    publish(parts, part.split, block, mark[0]);
    return gather<T, true>(args, parts, 0, mark[0]);
}

template <class T>
SDORT_INLINE void general_body(const Args& args) {
    SDORT_SHARED(float, shared, 3);
    const Part part = part_of(args);
    const T* embedding = static_cast<const T*>(args.embedding) + static_cast<int64_t>(part.image) * args.channels;
    const Moments all = all_of<T>(args, part, sum_up(args, part, embedding));
    if (thread_index() == 0) {
        shared[0] = all.mean;
        shared[1] = all.mean_low;
        shared[2] = fast_rsqrt(all.m2 / all.count + args.epsilon);
    }
    block_barrier();
    const float mean = shared[0], low = shared[1], scale = shared[2];
    const int64_t elements = static_cast<int64_t>(part.rows) * args.group_channels;
    for (int64_t i = thread_index(); i < elements; i += kGeneralThreads) {
        const int row = static_cast<int>(i / args.group_channels);
        const int channel = part.group * args.group_channels + static_cast<int>(i - static_cast<int64_t>(row) * args.group_channels);
        const float value = widen(summed(args, embedding, part.row + row, channel));
        const float y = fmaf(value - mean - low, scale * args.gamma[channel], args.beta[channel]);
        static_cast<T*>(args.y)[(part.row + row) * args.channels + channel] = Narrow<T>::from(args.silu ? silu(y) : y);
    }
}

SDORT_KERNEL_RESIDENT(group_norm_f32_general, kGeneralThreads, 1, Args, general_body<float>)
SDORT_KERNEL_RESIDENT(group_norm_f16_general, kGeneralThreads, 1, Args, general_body<half>)

}  // namespace sdort::group_norm
