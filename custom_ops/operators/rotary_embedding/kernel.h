#pragma once

#include "rotary_embedding.h"
#include "rows/kernel.h"

namespace sdort::rotary_embedding {

using rows::at, rows::pack_at, rows::kHeldThreads;

// The places of the first and the second element of pair k, of `count` pairs in a row.
template <bool kNeighbours>
SDORT_INLINE constexpr uint32_t first_of(uint32_t k) { return kNeighbours ? 2 * k : k; }
template <bool kNeighbours>
SDORT_INLINE constexpr uint32_t second_of(uint32_t k, uint32_t count) { return kNeighbours ? 2 * k + 1 : k + count; }

// A row in the registers of L lanes, a vector of pairs each. Everything is loaded before anything is used; a lane past the
// row's end reads its last vector again.
template <class T, int L, bool kNeighbours>
SDORT_INLINE void turn_held(const Args& args) {
    constexpr int N = kVector<T>;
    const uint32_t row = block_index() * (kHeldThreads / L) + thread_index() / L;
    const uint32_t column = thread_index() % L * N;
    const bool counts = row < args.rows && column < args.width;
    const uint32_t from = column < args.width ? column : args.width - N;
    const uint32_t read = row < args.rows ? row : args.rows - 1;
    const uint32_t places[2] = {first_of<kNeighbours>(from), kNeighbours ? 2 * from + N : from + args.width};
    const size_t here = size_t{read} * 2 * args.width;
    const size_t table = size_t{read / args.heads % args.table_rows} * args.width + from;
    Pack<T, N> x[2], scale[2];
#pragma unroll
    for (int i = 0; i < 2; ++i) x[i] = pack_at<T, N>(args.x, here + places[i]);
    const Pack<T, N> cos = pack_at<T, N>(args.cos, table), sin = pack_at<T, N>(args.sin, table);
#pragma unroll
    for (int i = 0; i < 2; ++i) scale[i] = args.scale ? pack_at<T, N>(args.scale, places[i]) : Pack<T, N>{};
    float values[2 * N];
#pragma unroll
    for (int k = 0; k < 2 * N; ++k) values[k] = widen(x[k / N][k % N]);
    if (args.scale) {
        float squares = 0.0f;
#pragma unroll
        for (int k = 0; k < 2 * N; ++k) squares = fmaf(values[k], values[k], squares);
        const float sum = lanes_sum<L>(counts ? squares : 0.0f);
        const float factor = fast_rsqrt(sum / static_cast<float>(2 * args.width) + args.epsilon);
#pragma unroll
        for (int k = 0; k < 2 * N; ++k) values[k] *= factor * widen(scale[k / N][k % N]);
    }
    float out[2][N];
#pragma unroll
    for (int k = 0; k < N; ++k) {
        const int first = first_of<kNeighbours>(k), second = second_of<kNeighbours>(k, N);
        const float a = values[first], b = values[second], c = widen(cos[k]), s = widen(sin[k]);
        out[first / N][first % N] = fmaf(a, c, -b * s);
        out[second / N][second % N] = fmaf(b, c, a * s);
    }
    if (!counts) return;
#pragma unroll
    for (int i = 0; i < 2; ++i) store(static_cast<T*>(args.y) + here + places[i], out[i]);
}

// Any row: a wave reads it for its sum of squares, and to turn it.
template <class T, bool kNeighbours>
SDORT_INLINE void turn_wide(const Args& args) {
    const uint32_t row = block_index() * (kHeldThreads / kWave) + wave_of(thread_index());
    if (row >= args.rows) return;
    const size_t here = size_t{row} * 2 * args.width;
    const size_t table = size_t{row / args.heads % args.table_rows} * args.width;
    float factor = 1.0f;
    if (args.scale) {
        float squares = 0.0f;
        for (uint32_t i = lane_index(); i < 2 * args.width; i += kWave) {
            const float x = widen(*at<T>(args.x, here + i));
            squares = fmaf(x, x, squares);
        }
        factor = fast_rsqrt(wave_sum(squares) / static_cast<float>(2 * args.width) + args.epsilon);
    }
    for (uint32_t k = lane_index(); k < args.width; k += kWave) {
        const uint32_t first = first_of<kNeighbours>(k), second = second_of<kNeighbours>(k, args.width);
        float a = widen(*at<T>(args.x, here + first)) * factor, b = widen(*at<T>(args.x, here + second)) * factor;
        if (args.scale) {
            a *= widen(*at<T>(args.scale, first));
            b *= widen(*at<T>(args.scale, second));
        }
        const float c = widen(*at<T>(args.cos, table + k)), s = widen(*at<T>(args.sin, table + k));
        static_cast<T*>(args.y)[here + first] = Narrow<T>::from(fmaf(a, c, -b * s));
        static_cast<T*>(args.y)[here + second] = Narrow<T>::from(fmaf(b, c, a * s));
    }
}

#define SDORT_TURN(variant, body) SDORT_ROW_KERNEL_OF(rotary_embedding, variant, ::sdort::rows::kHeldThreads, Args, body)
SDORT_TURN(pairs_l4, (turn_held<T, 4, true>))
SDORT_TURN(pairs_l8, (turn_held<T, 8, true>))
SDORT_TURN(pairs_l16, (turn_held<T, 16, true>))
SDORT_TURN(pairs_l32, (turn_held<T, 32, true>))
SDORT_TURN(pairs_wide, (turn_wide<T, true>))
SDORT_TURN(halves_l4, (turn_held<T, 4, false>))
SDORT_TURN(halves_l8, (turn_held<T, 8, false>))
SDORT_TURN(halves_l16, (turn_held<T, 16, false>))
SDORT_TURN(halves_l32, (turn_held<T, 32, false>))
SDORT_TURN(halves_wide, (turn_wide<T, false>))

}  // namespace sdort::rotary_embedding
