#pragma once

#include "split_gate.h"
#include "rows/kernel.h"

namespace sdort::split_gate {

template <class T, int N>
SDORT_INLINE void body(const Args& args) {
    const uint32_t first = rows::global_index();
    if (first >= args.stride_vectors) return;
    const size_t half_row = size_t{args.row_vectors} * N;
    const uint32_t stride = args.stride_vectors / args.row_vectors;
    uint32_t row = first / args.row_vectors;
    const float linear = -kLog2E * args.linear, cubic = -kLog2E * args.cubic;
    for (int64_t i = first; i < args.vectors; i += args.stride_vectors, row += stride) {
        const T* source = static_cast<const T*>(args.x) + i * N + row * half_row;
        float left[N], right[N];
        load(source, left);
        load(source + half_row, right);
#pragma unroll
        for (int k = 0; k < N; ++k) {
            const float x = right[k], exponent = x * fmaf(cubic, x * x, linear);
            left[k] *= x * fast_rcp(1.0f + fast_exp2(exponent));
        }
        store(static_cast<T*>(args.y) + i * N, left);
    }
}

SDORT_COLUMN_KERNELS(split_gate, Args, body)

}  // namespace sdort::split_gate
