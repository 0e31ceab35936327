#pragma once

#include "device/device.h"
#include "skip_layer_norm.h"

namespace sdort::skip_layer_norm {

template <class T>
SDORT_INLINE const T* at(const void* base, size_t index) {
    return static_cast<const T*>(base) + index;
}

// X + skip + bias of N elements; what comes from memory for every row is given.
template <class T, int N>
SDORT_INLINE void summed(const Args& args, const Pack<T, N>& x, const Pack<T, N>& skip, uint32_t column,
                         float (&values)[N]) {
    float bias[N] = {};
    if (args.bias) load(at<T>(args.bias, column), bias);
#pragma unroll
    for (int k = 0; k < N; ++k) values[k] = widen(x[k]) + widen(skip[k]) + bias[k];
}

template <class T, int N>
SDORT_INLINE Pack<T, N> pack_at(const void* base, size_t index) {
    return *reinterpret_cast<const Pack<T, N>*>(at<T>(base, index));
}

template <class T, int N>
SDORT_INLINE void finish(const Args& args, size_t row, uint32_t column, float mean, float scale, const float (&values)[N]) {
    if (args.sum) store(static_cast<T*>(args.sum) + row + column, values);
    float gamma[N], beta[N] = {}, out[N];
    load(at<T>(args.gamma, column), gamma);
    if (args.beta) load(at<T>(args.beta, column), beta);
#pragma unroll
    for (int k = 0; k < N; ++k) out[k] = fmaf((values[k] - mean) * scale, gamma[k], beta[k]);
    store(static_cast<T*>(args.y) + row + column, out);
}

// A row in the registers of a wave.
template <class T, int V>
SDORT_INLINE void body(const Args& args) {
    constexpr int N = kVector<T>;
    const uint32_t row = block_index() * (kThreads / kWave) + thread_index() / kWave;
    if (row >= args.rows) return;
    const size_t start = static_cast<size_t>(row) * args.width;
    const size_t skip = static_cast<size_t>(row % args.skip_rows) * args.width;
    // All loads first, so that all are in flight together; a lane past the end reads the last vector again, which costs
    // less than a branch between them.
    Pack<T, N> x[V], other[V];
#pragma unroll
    for (int v = 0; v < V; ++v) {
        const uint32_t wanted = (v * kWave + lane_index()) * N;
        const uint32_t column = wanted < args.width ? wanted : args.width - N;
        x[v] = pack_at<T, N>(args.x, start + column);
        other[v] = pack_at<T, N>(args.skip, skip + column);
    }
    float values[V][N];
    float total = 0.0f;
#pragma unroll
    for (int v = 0; v < V; ++v) {
        const uint32_t column = (v * kWave + lane_index()) * N;
        if (column >= args.width) break;
        summed<T>(args, x[v], other[v], column, values[v]);
#pragma unroll
        for (int k = 0; k < N; ++k) total += values[v][k];
    }
    const float mean = wave_sum(total) / args.width;
    float squares = 0.0f;
#pragma unroll
    for (int v = 0; v < V; ++v) {
        if (static_cast<uint32_t>(v * kWave + lane_index()) * N >= args.width) break;
#pragma unroll
        for (int k = 0; k < N; ++k) squares = fmaf(values[v][k] - mean, values[v][k] - mean, squares);
    }
    const float scale = fast_rsqrt(wave_sum(squares) / args.width + args.epsilon);
#pragma unroll
    for (int v = 0; v < V; ++v) {
        const uint32_t column = (v * kWave + lane_index()) * N;
        if (column >= args.width) break;
        finish<T>(args, start, column, mean, scale, values[v]);
    }
}

// Any row: read again for each of the three passes.
template <class T>
SDORT_INLINE void wide(const Args& args) {
    const uint32_t row = block_index() * (kThreads / kWave) + thread_index() / kWave;
    if (row >= args.rows) return;
    const size_t start = static_cast<size_t>(row) * args.width;
    const size_t skip = static_cast<size_t>(row % args.skip_rows) * args.width;
    float value[1];
    float total = 0.0f, squares = 0.0f;
    for (uint32_t column = lane_index(); column < args.width; column += kWave) {
        summed<T>(args, pack_at<T, 1>(args.x, start + column), pack_at<T, 1>(args.skip, skip + column), column, value);
        total += value[0];
    }
    const float mean = wave_sum(total) / args.width;
    for (uint32_t column = lane_index(); column < args.width; column += kWave) {
        summed<T>(args, pack_at<T, 1>(args.x, start + column), pack_at<T, 1>(args.skip, skip + column), column, value);
        squares = fmaf(value[0] - mean, value[0] - mean, squares);
    }
    const float scale = fast_rsqrt(wave_sum(squares) / args.width + args.epsilon);
    for (uint32_t column = lane_index(); column < args.width; column += kWave) {
        summed<T>(args, pack_at<T, 1>(args.x, start + column), pack_at<T, 1>(args.skip, skip + column), column, value);
        finish<T>(args, start, column, mean, scale, value);
    }
}

#define SDORT_SKIP_LAYER_NORM(name, T)                             \
    SDORT_KERNEL(name##_v1, kThreads, Args, (body<T, 1>))   \
    SDORT_KERNEL(name##_v2, kThreads, Args, (body<T, 2>))   \
    SDORT_KERNEL(name##_v3, kThreads, Args, (body<T, 3>))   \
    SDORT_KERNEL(name##_v5, kThreads, Args, (body<T, 5>))   \
    SDORT_KERNEL(name##_v10, kThreads, Args, (body<T, 10>)) \
    SDORT_KERNEL(name##_wide, kThreads, Args, wide<T>)
SDORT_SKIP_LAYER_NORM(skip_layer_norm_f32, float)
SDORT_SKIP_LAYER_NORM(skip_layer_norm_f16, half)
#undef SDORT_SKIP_LAYER_NORM

}  // namespace sdort::skip_layer_norm
