#pragma once

#include "modulated_norm.h"
#include "rows/kernel.h"

namespace sdort::modulated_norm {

using rows::at, rows::kHeldThreads, rows::pack_at, rows::row_sum;

// A row in the registers of L lanes, V vectors each; a lane past the row's end reads its last vector again. What rows share is
// loaded where it is used, and dies there: registers, not the cache's latency, are what wide rows run out of.
template <class T, int L, int V>
SDORT_INLINE void modulate_held(const Args& args) {
    constexpr int N = kVector<T>, kWaves = kHeldThreads / kWave;
    SDORT_SHARED(float, shelf, 3 * kWaves);
    const uint32_t row = block_index() * (kHeldThreads / L) + thread_index() / L;
    const bool exists = row < args.rows;  // all waves meet at the barriers, those without a row too
    const uint32_t read = exists ? row : args.rows - 1;
    const size_t here = size_t{read} * args.width, image = size_t{read / args.image_rows} * args.width;
    const uint32_t lane = thread_index() % L;
    const auto column = [&](int v) { return (v * L + lane) * N; };
    const auto from = [&](int v) { return column(v) < args.width ? column(v) : args.width - N; };
    const float inverse = 1.0f / static_cast<float>(args.width);
    float values[V][N];
    const auto each = [&](const auto& body) {
#pragma unroll
        for (int v = 0; v < V; ++v)
#pragma unroll
            for (int k = 0; k < N; ++k) body(v, k);
    };
    const auto all_of = [&](Pack<T, N>(&packs)[V], const void* base, size_t offset) {
#pragma unroll
        for (int v = 0; v < V; ++v) packs[v] = pack_at<T, N>(base, offset + from(v));
    };
    const auto sum_of = [&](const auto& term, float* place) {
        float total = 0.0f;
#pragma unroll
        for (int v = 0; v < V; ++v) {
            float own = 0.0f;
#pragma unroll
            for (int k = 0; k < N; ++k) own = term(values[v][k], own);
            total += column(v) < args.width ? own : 0.0f;
        }
        return row_sum<L>(total, place) * inverse;
    };
    const auto square = [](float value, float own) { return fmaf(value, value, own); };
    Pack<T, N> x[V];
    all_of(x, args.x, here);
    if (args.branch) {
        Pack<T, N> packs[V];
        all_of(packs, args.branch, here);
        each([&](int v, int k) { values[v][k] = widen(packs[v][k]); });
        if (args.bias) {
            all_of(packs, args.bias, 0);
            each([&](int v, int k) { values[v][k] += widen(packs[v][k]); });
        }
        if (args.factor) {
            all_of(packs, args.factor, 0);
            const float root = fast_rsqrt(sum_of(square, shelf + 2 * kWaves) + args.branch_epsilon);
            each([&](int v, int k) { values[v][k] *= root * widen(packs[v][k]); });
        }
        all_of(packs, args.gate, image);
        each([&](int v, int k) { values[v][k] = fmaf(widen(packs[v][k]), values[v][k], widen(x[v][k])); });
#pragma unroll
        for (int v = 0; v < V; ++v)  // on their way while the row is summed up
            if (args.sum && exists && column(v) < args.width) store(static_cast<T*>(args.sum) + here + column(v), values[v]);
    } else {
        each([&](int v, int k) { values[v][k] = widen(x[v][k]); });
    }
    Pack<T, N> scale[V], shift[V];
    all_of(scale, args.scale, image);
    if (args.shift) {
        all_of(shift, args.shift, image);
    } else {
#pragma unroll
        for (int v = 0; v < V; ++v) shift[v] = {};
    }
    if (!args.rms) {
        const float mean = sum_of([](float value, float own) { return own + value; }, shelf);
        each([&](int v, int k) { values[v][k] -= mean; });
    }
    const float root = fast_rsqrt(sum_of(square, shelf + kWaves) + args.epsilon);
    each([&](int v, int k) { values[v][k] *= root; });
    if (args.weight) {
        all_of(x, args.weight, 0);
        each([&](int v, int k) { values[v][k] *= widen(x[v][k]); });
    }
    const auto modulate = [&](void* y) {
#pragma unroll
        for (int v = 0; v < V; ++v) {
            if (!exists || column(v) >= args.width) return;
            float out[N];
#pragma unroll
            for (int k = 0; k < N; ++k) out[k] = fmaf(values[v][k], widen(scale[v][k]), widen(shift[v][k]));
            store(static_cast<T*>(y) + here + column(v), out);
        }
    };
    modulate(args.y);
    if (args.y2) {
        all_of(scale, args.scale2, image);
        all_of(shift, args.shift2, image);
        modulate(args.y2);
    }
}

template <class T>
SDORT_INLINE float added(const Args& args, size_t index, uint32_t column) {
    const float branch = widen(*at<T>(args.branch, index));
    return args.bias ? branch + widen(*at<T>(args.bias, column)) : branch;
}

// S of one element; `root` is of the branch's norm, or 1.
template <class T>
SDORT_INLINE float summed(const Args& args, size_t here, size_t image, uint32_t column, float root) {
    const float x = widen(*at<T>(args.x, here + column));
    if (!args.branch) return x;
    float value = added<T>(args, here + column, column);
    if (args.factor) value *= root * widen(*at<T>(args.factor, column));
    return fmaf(widen(*at<T>(args.gate, image + column)), value, x);
}

// Any row: a wave reads it again for each pass.
template <class T>
SDORT_INLINE void modulate_wide(const Args& args) {
    const uint32_t row = block_index() * (kHeldThreads / kWave) + wave_of(thread_index());
    if (row >= args.rows) return;
    const size_t here = size_t{row} * args.width, image = size_t{row / args.image_rows} * args.width;
    float root = 1.0f, mean = 0.0f, squares = 0.0f;
    if (args.branch && args.factor) {
        float own = 0.0f;
        for (uint32_t column = lane_index(); column < args.width; column += kWave) {
            const float value = added<T>(args, here + column, column);
            own = fmaf(value, value, own);
        }
        root = fast_rsqrt(wave_sum(own) / args.width + args.branch_epsilon);
    }
    if (!args.rms) {
        float total = 0.0f;
        for (uint32_t column = lane_index(); column < args.width; column += kWave)
            total += summed<T>(args, here, image, column, root);
        mean = wave_sum(total) / args.width;
    }
    for (uint32_t column = lane_index(); column < args.width; column += kWave) {
        const float centred = summed<T>(args, here, image, column, root) - mean;
        squares = fmaf(centred, centred, squares);
    }
    const float by = fast_rsqrt(wave_sum(squares) / args.width + args.epsilon);
    for (uint32_t column = lane_index(); column < args.width; column += kWave) {
        const float sum = summed<T>(args, here, image, column, root);
        float normal = (sum - mean) * by;
        if (args.weight) normal *= widen(*at<T>(args.weight, column));
        if (args.sum) static_cast<T*>(args.sum)[here + column] = Narrow<T>::from(sum);
        const auto modulated = [&](const void* scale, const void* shift) {
            const float moved = shift ? widen(*at<T>(shift, image + column)) : 0.0f;
            return Narrow<T>::from(fmaf(normal, widen(*at<T>(scale, image + column)), moved));
        };
        static_cast<T*>(args.y)[here + column] = modulated(args.scale, args.shift);
        if (args.y2) static_cast<T*>(args.y2)[here + column] = modulated(args.scale2, args.shift2);
    }
}

SDORT_HELD_KERNELS(modulated_norm, Args, modulate_held, modulate_wide)

}  // namespace sdort::modulated_norm
