// Mean and variance of many values, exactly enough for mean >> std, in a fixed order: the parts of a group's statistics.
#pragma once

#include "device/wave.h"

namespace sdort::group_norm {

// Some values: how many, their mean, the sum of their squared distances to it. The last merge also tells what rounding
// took from the mean: of mean 1000 and std 1, fp32 keeps five digits of the distances otherwise.
struct Moments {
    float count, mean, m2;
    float mean_low = 0.0f;
};

// A running sum of values, taken as distances to a pivot. The variance loses digits to cancellation only as far as the
// pivot lies outside the data: a pivot that is the mean of k of n values costs at most a factor of 1 + n / k in the
// error, whatever the values are, since those k are part of the variance. So the first pivot is a value, and settle(),
// called every few values, makes the mean so far the pivot.
struct Sum {
    float pivot, distance, square;

    SDORT_INLINE void start(float value) {
        pivot = value;
        distance = square = 0.0f;
    }
    SDORT_INLINE void add(float value) {
        const float d = value - pivot;
        distance += d;
        square = fmaf(d, d, square);
    }
    SDORT_INLINE void settle(float count, float inverse) {
        const float mean = pivot + distance * inverse;
        // Moving the pivot by `step` moves the sums exactly so; after it `square` is m2 but for the mean's rounding.
        const float step = mean - pivot;
        square = fmaxf(0.0f, square - step * (2.0f * distance - count * step));
        distance -= count * step;
        pivot = mean;
    }
};

// Whether squares are summed as distances to the merged mean, in a second pass, as fp32 needs; else to one part's mean, in
// the pass that finds it. That costs a factor of at most 1 + n / k in the error (see Sum), which fp16 rounds away, and spares
// the latencies of a sum over a wave.
template <class T>
constexpr bool kSecondPass = sizeof(T) == 4;

// Parts of a lane, summed as distances to a base.
struct Together {
    float base, n = 0.0f, sum = 0.0f, square = 0.0f;

    SDORT_INLINE void add(const Moments& part) {
        const float d = part.mean - base;
        n += part.count;
        sum = fmaf(part.count, d, sum);
        square += fmaf(part.count * d, d, part.m2);
    }
};

// All lanes of a wave: the moments of all of their parts, the same bits in every lane; each(body) calls body with every part
// of this lane. The mean is summed as distances to one part's, so equal means give exactly that mean.
template <class T, class Each>
SDORT_INLINE Moments merge_parts(float base, Each each) {
    Together all{base};
    each([&](const Moments& part) { all.add(part); });
    const float n = wave_sum(all.n), sum = wave_sum(all.sum);
    const float distance = sum * fast_rcp(n), mean = base + distance, low = distance - (mean - base);
    if constexpr (kSecondPass<T>) {
        Together again{mean};
        each([&](const Moments& part) { again.add(part); });
        return {n, mean, wave_sum(again.square), low};
    } else {
        const float m2 = fmaf(-sum, distance, wave_sum(all.square));
        return {n, mean, m2 < 0.0f ? 0.0f : m2, low};
    }
}

// Entries 0 .. count - 1. `mine` is the entry of this lane, all zero where there is none; entry(i) tells those beyond the
// wave's width. Little code, since it runs once and instructions come from memory, too.
template <class T, class Entry>
SDORT_INLINE Moments merge(int count, Moments mine, Entry entry) {
    return merge_parts<T>(shuffle(mine.mean, 0), [&](auto body) {
        body(mine);
#pragma unroll 1
        for (int i = lane_index() + kWave; i < count; i += kWave) body(entry(i));
    });
}

// K entries a lane, in registers.
template <class T, int K>
SDORT_INLINE Moments merge(const Moments (&mine)[K]) {
    return merge_parts<T>(shuffle(mine[0].mean, 0), [&](auto body) {
#pragma unroll
        for (int i = 0; i < K; ++i) body(mine[i]);
    });
}

}  // namespace sdort::group_norm
