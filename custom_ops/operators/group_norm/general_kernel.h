// The general variant: any number of channels and groups, an element at a time. A slab is one group. It reads twice, in two
// launches if a slab has several blocks.
#pragma once

#include "block.h"
#include "silu.h"

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
    const int slab = slab_of(args), split = split_of(args);
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

// Of all threads of the block: the first wave's answer.
template <class T>
SDORT_INLINE Moments block_moments(const Moments& mine) {
    SDORT_SHARED(float, entries, 3 * kGeneralThreads);
    const int thread = thread_index();
    entries[thread] = mine.count;
    entries[kGeneralThreads + thread] = mine.mean;
    entries[2 * kGeneralThreads + thread] = mine.m2;
    block_barrier();
    if (wave_of(thread) > 0) return mine;
    return merge<T>(kGeneralThreads, mine, [&](int i) {
        return Moments{entries[i], entries[kGeneralThreads + i], entries[2 * kGeneralThreads + i]};
    });
}

template <class T>
SDORT_INLINE const T* embedding_of(const Args& args, const Part& part) {
    return static_cast<const T*>(args.embedding) + static_cast<int64_t>(part.image) * args.channels;
}

// With what the first wave knows of the slab's statistics.
template <class T>
SDORT_INLINE void apply(const Args& args, const Part& part, const Moments& all) {
    SDORT_SHARED(float, shared, 3);
    if (thread_index() == 0) write(args, 0, all, shared);
    block_barrier();
    const T* const embedding = embedding_of<T>(args, part);
    const float mean = shared[0], low = shared[1], scale = shared[2];
    const int64_t elements = static_cast<int64_t>(part.rows) * args.group_channels;
    for (int64_t i = thread_index(); i < elements; i += kGeneralThreads) {
        const int row = static_cast<int>(i / args.group_channels);
        const int channel = part.group * args.group_channels + static_cast<int>(i - static_cast<int64_t>(row) * args.group_channels);
        const float value = widen(summed(args, embedding, part.row + row, channel));
        const float gamma = affine_at(args, args.gamma, channel), beta = affine_at(args, args.beta, channel);
        const float y = fmaf(value - mean - low, scale * gamma, beta);
        static_cast<T*>(args.y)[(part.row + row) * args.channels + channel] = Narrow<T>::from(args.silu ? silu(y) : y);
    }
}

template <class T>
SDORT_INLINE void general_body(const Args& args) {
    const Part part = part_of(args);
    apply<T>(args, part, block_moments<T>(sum_up(args, part, embedding_of<T>(args, part))));
}

template <class T>
SDORT_INLINE void general_measure_body(const Args& args) {
    const Part part = part_of(args);
    const Moments block = block_moments<T>(sum_up(args, part, embedding_of<T>(args, part)));
    if (wave_of(thread_index()) == 0) store_part(args, part.slab, 0, part.split, block);
}

template <class T>
SDORT_INLINE void general_apply_body(const Args& args) {
    const Part part = part_of(args);
    apply<T>(args, part, wave_of(thread_index()) == 0 ? load_parts<T>(args, part.slab, 0) : Moments{});
}

SDORT_KERNEL_RESIDENT(group_norm_f32_general, kGeneralThreads, 1, Args, general_body<float>)
SDORT_KERNEL_RESIDENT(group_norm_f16_general, kGeneralThreads, 1, Args, general_body<half>)
SDORT_KERNEL_RESIDENT(group_norm_f32_general_measure, kGeneralThreads, 1, Args, general_measure_body<float>)
SDORT_KERNEL_RESIDENT(group_norm_f16_general_measure, kGeneralThreads, 1, Args, general_measure_body<half>)
SDORT_KERNEL_RESIDENT(group_norm_f32_general_apply, kGeneralThreads, 1, Args, general_apply_body<float>)
SDORT_KERNEL_RESIDENT(group_norm_f16_general_apply, kGeneralThreads, 1, Args, general_apply_body<half>)

}  // namespace sdort::group_norm
