// Layer normalization of rows that lanes hold in registers: the kernels of layer_norm and of skip_layer_norm.
//
// Args of a kernel have x, gamma, beta (or null), y, rows, width and epsilon; those of skip_layer_norm also skip, skip_rows,
// bias (or null) and sum (or null).
#pragma once

#include "rows/kernel.h"

namespace sdort::rows {

template <class Args>
constexpr bool kHasSkip = requires(const Args& args) { args.skip; };

// A row in the registers of L lanes, V vectors each. Everything is loaded before anything is used, so that all loads are in
// flight together; a lane past the row's end reads its last vector again, which costs less than a branch.
template <class T, int L, int V, class Args>
SDORT_INLINE void normalize_held(const Args& args) {
    constexpr int N = kVector<T>;
    constexpr bool kSkip = kHasSkip<Args>;
    SDORT_SHARED(float, shelf, 2 * kHeldThreads / kWave);
    const uint32_t row = block_index() * (kHeldThreads / L) + thread_index() / L;
    const bool exists = row < args.rows;  // all waves meet at the barriers, those without a row too
    const size_t here = static_cast<size_t>(exists ? row : args.rows - 1) * args.width;
    const uint32_t lane = thread_index() % L;
    const auto column = [&](int v) { return (v * L + lane) * N; };
    Pack<T, N> x[V], skip[V], gamma[V], beta[V], bias[V];
#pragma unroll
    for (int v = 0; v < V; ++v) {
        const uint32_t from = column(v) < args.width ? column(v) : args.width - N;
        x[v] = pack_at<T, N>(args.x, here + from);
        if constexpr (kSkip)
            skip[v] = pack_at<T, N>(args.skip, (exists ? row : args.rows - 1) % args.skip_rows * size_t{args.width} + from);
    }
#pragma unroll
    for (int v = 0; v < V; ++v) {
        const uint32_t from = column(v) < args.width ? column(v) : args.width - N;
        gamma[v] = pack_at<T, N>(args.gamma, from);
        beta[v] = args.beta ? pack_at<T, N>(args.beta, from) : Pack<T, N>{};
        if constexpr (kSkip) bias[v] = args.bias ? pack_at<T, N>(args.bias, from) : Pack<T, N>{};
    }
    float values[V][N];
    float total = 0.0f;
#pragma unroll
    for (int v = 0; v < V; ++v) {
        float own = 0.0f;
#pragma unroll
        for (int k = 0; k < N; ++k) {
            values[v][k] = widen(x[v][k]);
            if constexpr (kSkip) values[v][k] = values[v][k] + widen(skip[v][k]) + widen(bias[v][k]);
            own += values[v][k];
        }
        total += column(v) < args.width ? own : 0.0f;
        if constexpr (kSkip)  // its stores are on their way while the row is summed up
            if (args.sum && exists && column(v) < args.width) store(static_cast<T*>(args.sum) + here + column(v), values[v]);
    }
    const float inverse = 1.0f / static_cast<float>(args.width), mean = row_sum<L>(total, shelf) * inverse;
    float squares = 0.0f;
#pragma unroll
    for (int v = 0; v < V; ++v) {
        float own = 0.0f;
#pragma unroll
        for (int k = 0; k < N; ++k) {
            values[v][k] -= mean;
            own = fmaf(values[v][k], values[v][k], own);
        }
        squares += column(v) < args.width ? own : 0.0f;
    }
    const float scale = fast_rsqrt(row_sum<L>(squares, shelf + kHeldThreads / kWave) * inverse + args.epsilon);
#pragma unroll
    for (int v = 0; v < V; ++v) {
        if (!exists || column(v) >= args.width) return;
        float out[N];
#pragma unroll
        for (int k = 0; k < N; ++k) out[k] = fmaf(values[v][k] * scale, widen(gamma[v][k]), widen(beta[v][k]));
        store(static_cast<T*>(args.y) + here + column(v), out);
    }
}

template <class T, class Args>
SDORT_INLINE float summed(const Args& args, uint32_t row, uint32_t column) {
    const float x = widen(*at<T>(args.x, static_cast<size_t>(row) * args.width + column));
    if constexpr (!kHasSkip<Args>) {
        return x;
    } else {
        const float skip = widen(*at<T>(args.skip, static_cast<size_t>(row % args.skip_rows) * args.width + column));
        return x + skip + (args.bias ? widen(*at<T>(args.bias, column)) : 0.0f);
    }
}

// Any row: a wave reads it again for each of the three passes.
template <class T, class Args>
SDORT_INLINE void normalize_wide(const Args& args) {
    const uint32_t row = block_index() * (kHeldThreads / kWave) + wave_of(thread_index());
    if (row >= args.rows) return;
    float total = 0.0f, squares = 0.0f;
    for (uint32_t column = lane_index(); column < args.width; column += kWave) total += summed<T>(args, row, column);
    const float mean = wave_sum(total) / args.width;
    for (uint32_t column = lane_index(); column < args.width; column += kWave) {
        const float centred = summed<T>(args, row, column) - mean;
        squares += centred * centred;
    }
    const float scale = fast_rsqrt(wave_sum(squares) / args.width + args.epsilon);
    for (uint32_t column = lane_index(); column < args.width; column += kWave) {
        const size_t index = static_cast<size_t>(row) * args.width + column;
        const float here = summed<T>(args, row, column), shift = args.beta ? widen(*at<T>(args.beta, column)) : 0.0f;
        if constexpr (kHasSkip<Args>)
            if (args.sum) static_cast<T*>(args.sum)[index] = Narrow<T>::from(here);
        static_cast<T*>(args.y)[index] = Narrow<T>::from(fmaf((here - mean) * scale, widen(*at<T>(args.gamma, column)), shift));
    }
}

}  // namespace sdort::rows
