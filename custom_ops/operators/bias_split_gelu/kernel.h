#pragma once

#include "bias_split_gelu.h"
#include "device/gelu.h"
#include "rows/kernel.h"

namespace sdort::bias_split_gelu {

// N elements a vector, `Rows` rows in flight.
template <class T, int N, int Rows>
SDORT_INLINE void body(const Args& args) {
    const uint32_t first = rows::global_index();
    const uint32_t column = first % args.columns;
    const uint32_t start = first / args.columns;
    if (start >= args.row_stride) return;
    const size_t half_row = static_cast<size_t>(args.columns) * N;
    const T* x = static_cast<const T*>(args.x) + static_cast<size_t>(column) * N;
    T* y = static_cast<T*>(args.y) + static_cast<size_t>(column) * N;
    float bias[2][N];
    load(static_cast<const T*>(args.bias) + static_cast<size_t>(column) * N, bias[0]);
    load(static_cast<const T*>(args.bias) + static_cast<size_t>(column) * N + half_row, bias[1]);
    for (uint32_t row = start; row < args.rows; row += Rows * args.row_stride) {
        Pack<T, N> left[Rows], right[Rows];
#pragma unroll
        for (int i = 0; i < Rows; ++i) {
            // Past the end the last row is read again: a load that nobody waits for is cheaper than a branch.
            const uint32_t wanted = row + i * args.row_stride;
            const T* source = x + (wanted < args.rows ? wanted : args.rows - 1) * 2 * half_row;
            left[i] = *reinterpret_cast<const Pack<T, N>*>(source);
            right[i] = *reinterpret_cast<const Pack<T, N>*>(source + half_row);
        }
#pragma unroll
        for (int i = 0; i < Rows; ++i) {
            const uint32_t here = row + i * args.row_stride;
            if (here >= args.rows) break;
            float out[N];
#pragma unroll
            for (int k = 0; k < N; ++k)
                out[k] = (widen(left[i][k]) + bias[0][k]) * gelu(widen(right[i][k]) + bias[1][k]);
            store(y + here * half_row, out);
        }
    }
}

SDORT_ROW_KERNEL(bias_split_gelu, r1, Args, (body<T, kVector<T>, 1>))
SDORT_ROW_KERNEL(bias_split_gelu, r2, Args, (body<T, kVector<T>, 2>))
SDORT_ROW_KERNEL(bias_split_gelu, r4, Args, (body<T, kVector<T>, 4>))
SDORT_ROW_KERNEL(bias_split_gelu, narrow, Args, (body<T, 1, 1>))

}  // namespace sdort::bias_split_gelu
