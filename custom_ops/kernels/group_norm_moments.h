// Mean and variance of many values, exactly enough for mean >> std, in a fixed order: the parts of a group's statistics.
#pragma once

#include "device/device.h"

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

// body(entry(i)) for this lane's entries beyond the first of each lane; four are on their way at a time.
template <class Entry, class Body>
SDORT_INLINE void others(int count, Entry entry, Body body) {
    for (int first = lane_index() + kWave; first < count; first += 4 * kWave) {
#pragma unroll
        for (int i = 0; i < 4; ++i)
            if (first + i * kWave < count) body(entry(first + i * kWave));
    }
}

// All lanes of a wave: the moments of entries 0 .. count - 1 together, the same bits in every lane. `mine` is the entry
// of this lane, all zero where there is none; entry(i) tells those beyond the wave's width.
// The mean is summed as distances to the first entry's, so equal means give exactly that mean.
template <class Entry>
SDORT_INLINE Moments merge(int count, Moments mine, Entry entry) {
    const float base = shuffle(mine.mean, 0);
    float n = mine.count, sum = mine.count * (mine.mean - base);
    others(count, entry, [&](const Moments& other) {
        n += other.count;
        sum = fmaf(other.count, other.mean - base, sum);
    });
    n = wave_sum(n);
    const float distance = wave_sum(sum) * fast_rcp(n), mean = base + distance;
    float square = mine.mean - mean;
    square = fmaf(mine.count * square, square, mine.m2);
    others(count, entry, [&](const Moments& other) {
        const float d = other.mean - mean;
        square += fmaf(other.count * d, d, other.m2);
    });
    return {n, mean, wave_sum(square), distance - (mean - base)};
}

// Likewise of K entries a lane, in registers.
template <int K>
SDORT_INLINE Moments merge(const Moments (&mine)[K]) {
    const float base = shuffle(mine[0].mean, 0);
    float n = 0.0f, sum = 0.0f, square = 0.0f;
#pragma unroll
    for (int i = 0; i < K; ++i) {
        n += mine[i].count;
        sum = fmaf(mine[i].count, mine[i].mean - base, sum);
    }
    n = wave_sum(n);
    const float distance = wave_sum(sum) * fast_rcp(n), mean = base + distance;
#pragma unroll
    for (int i = 0; i < K; ++i) {
        const float d = mine[i].mean - mean;
        square += fmaf(mine[i].count * d, d, mine[i].m2);
    }
    return {n, mean, wave_sum(square), distance - (mean - base)};
}

}  // namespace sdort::group_norm
