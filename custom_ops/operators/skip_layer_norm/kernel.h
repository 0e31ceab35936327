#pragma once

#include "rows/kernel.h"
#include "skip_layer_norm.h"

namespace sdort::skip_layer_norm {

using rows::at, rows::kThreads, rows::pack_at, rows::row_sum;

// A row in the registers of W waves, V vectors a lane. Everything is loaded before anything is used, so that all loads
// are in flight together; a lane past the row's end reads its last vector again, which costs less than a branch.
template <class T, int W, int V>
SDORT_INLINE void body(const Args& args) {
    constexpr int N = kVector<T>, kLanes = W * kWave;
    SDORT_SHARED(float, shelf, 2 * kThreads / kWave);
    const uint32_t row = block_index() * (kThreads / kLanes) + thread_index() / kLanes;
    const bool exists = row < args.rows;  // all waves meet at the barriers, those without a row too
    const size_t here = exists ? row : args.rows - 1;
    const uint32_t lane = thread_index() % kLanes;
    Pack<T, N> x[V], skip[V], gamma[V], beta[V], bias[V];
#pragma unroll
    for (int v = 0; v < V; ++v) {
        const uint32_t wanted = (v * kLanes + lane) * N;
        const uint32_t column = wanted < args.width ? wanted : args.width - N;
        x[v] = pack_at<T, N>(args.x, here * args.width + column);
        skip[v] = pack_at<T, N>(args.skip, here % args.skip_rows * args.width + column);
        gamma[v] = pack_at<T, N>(args.gamma, column);
        beta[v] = args.beta ? pack_at<T, N>(args.beta, column) : Pack<T, N>{};
        bias[v] = args.bias ? pack_at<T, N>(args.bias, column) : Pack<T, N>{};
    }
    float values[V][N];
    float total = 0.0f;
#pragma unroll
    for (int v = 0; v < V; ++v) {
        const bool inside = (v * kLanes + lane) * N < args.width;
#pragma unroll
        for (int k = 0; k < N; ++k) {
            values[v][k] = widen(x[v][k]) + widen(skip[v][k]) + widen(bias[v][k]);
            total += inside ? values[v][k] : 0.0f;
        }
    }
    const float mean = row_sum<W>(total, shelf) / args.width;
    float squares = 0.0f;
#pragma unroll
    for (int v = 0; v < V; ++v) {
        const bool inside = (v * kLanes + lane) * N < args.width;
#pragma unroll
        for (int k = 0; k < N; ++k) squares += inside ? (values[v][k] - mean) * (values[v][k] - mean) : 0.0f;
    }
    const float scale = fast_rsqrt(row_sum<W>(squares, shelf + kThreads / kWave) / args.width + args.epsilon);
#pragma unroll
    for (int v = 0; v < V; ++v) {
        const uint32_t column = (v * kLanes + lane) * N;
        if (!exists || column >= args.width) return;
        if (args.sum) store(static_cast<T*>(args.sum) + here * args.width + column, values[v]);
        float out[N];
#pragma unroll
        for (int k = 0; k < N; ++k) out[k] = fmaf((values[v][k] - mean) * scale, widen(gamma[v][k]), widen(beta[v][k]));
        store(static_cast<T*>(args.y) + here * args.width + column, out);
    }
}

template <class T>
SDORT_INLINE float summed(const Args& args, uint32_t row, uint32_t column) {
    const float x = widen(*at<T>(args.x, static_cast<size_t>(row) * args.width + column));
    const float skip = widen(*at<T>(args.skip, static_cast<size_t>(row % args.skip_rows) * args.width + column));
    return x + skip + (args.bias ? widen(*at<T>(args.bias, column)) : 0.0f);
}

// Any row: a wave reads it again for each of the three passes.
template <class T>
SDORT_INLINE void wide(const Args& args) {
    const uint32_t row = block_index() * (kThreads / kWave) + wave_of(thread_index());
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
        if (args.sum) static_cast<T*>(args.sum)[index] = Narrow<T>::from(here);
        static_cast<T*>(args.y)[index] = Narrow<T>::from(fmaf((here - mean) * scale, widen(*at<T>(args.gamma, column)), shift));
    }
}

SDORT_HELD_KERNELS(skip_layer_norm, Args, body, wide)

}  // namespace sdort::skip_layer_norm
