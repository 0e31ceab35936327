#pragma once

#include "bias_add.h"
#include "rows/kernel.h"

namespace sdort::bias_add {

template <class T, int N>
SDORT_INLINE void body(const Args& args) {
    const uint32_t first = rows::global_index();
    if (first >= args.stride_vectors) return;
    float bias[N];
    load(static_cast<const T*>(args.bias) + static_cast<size_t>(first % args.row_vectors) * N, bias);
    for (int64_t i = first; i < args.vectors; i += args.stride_vectors) {
        float x[N], skip[N];
        load(static_cast<const T*>(args.x) + i * N, x);
        load(static_cast<const T*>(args.skip) + i * N, skip);
#pragma unroll
        for (int k = 0; k < N; ++k) x[k] = x[k] + bias[k] + skip[k];
        store(static_cast<T*>(args.y) + i * N, x);
    }
}

SDORT_COLUMN_KERNELS(bias_add, Args, body)

}  // namespace sdort::bias_add
