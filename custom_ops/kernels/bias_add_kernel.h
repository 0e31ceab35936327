#pragma once

#include "bias_add.h"
#include "device/device.h"

namespace sdort::bias_add {

template <class T, int N>
SDORT_INLINE void body(const Args& args) {
    const uint32_t first = static_cast<uint32_t>(block_index()) * kThreads + thread_index();
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

SDORT_KERNEL(bias_add_f32_vector, kThreads, Args, (body<float, kVector<float>>))
SDORT_KERNEL(bias_add_f16_vector, kThreads, Args, (body<half, kVector<half>>))
SDORT_KERNEL(bias_add_f32_narrow, kThreads, Args, (body<float, 1>))
SDORT_KERNEL(bias_add_f16_narrow, kThreads, Args, (body<half, 1>))

}  // namespace sdort::bias_add
