#pragma once

#include "gated_sum.h"
#include "rows/kernel.h"

namespace sdort::gated_sum {

template <class T, int N>
SDORT_INLINE void body(const Args& args) {
    const uint32_t first = rows::global_index();
    if (first >= args.stride_vectors) return;
    const size_t column = size_t{first % args.row_vectors} * N;
    const uint32_t stride = args.stride_vectors / args.row_vectors, image_rows = static_cast<uint32_t>(args.image_rows);
    uint32_t row = first / args.row_vectors;
    float bias[N];
    load(static_cast<const T*>(args.bias) + column, bias);
    for (int64_t i = first; i < args.vectors; i += args.stride_vectors, row += stride) {
        float x[N], branch[N], gate[N];
        load(static_cast<const T*>(args.x) + i * N, x);
        load(static_cast<const T*>(args.branch) + i * N, branch);
        load(static_cast<const T*>(args.gate) + size_t{row / image_rows} * args.width + column, gate);
#pragma unroll
        for (int k = 0; k < N; ++k) x[k] = fmaf(gate[k], branch[k] + bias[k], x[k]);
        store(static_cast<T*>(args.y) + i * N, x);
    }
}

SDORT_COLUMN_KERNELS(gated_sum, Args, body)

}  // namespace sdort::gated_sum
