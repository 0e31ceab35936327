// What kernels of rows are made of, on the device.
#pragma once

#include "device/wave.h"
#include "rows/rows.h"

namespace sdort::rows {

// One instance for float32 and one for float16: kernels name_f32_variant and name_f16_variant. `body` may use the type T:
// (body<T, kVector<T>>), in parentheses if it has a comma.
#define SDORT_ROW_KERNEL(name, variant, Args, body)                                                            \
    SDORT_KERNEL(name##_f32_##variant, ::sdort::rows::kThreads, Args, using T = float; body) \
    SDORT_KERNEL(name##_f16_##variant, ::sdort::rows::kThreads, Args, using T = half; body)

// body<T, N> with N elements an access: the variants of rows/geometry.h's columns.
#define SDORT_COLUMN_KERNELS(name, Args, body)                        \
    SDORT_ROW_KERNEL(name, vector, Args, (body<T, kVector<T>>)) \
    SDORT_ROW_KERNEL(name, narrow, Args, (body<T, 1>))

// body<T, waves, vectors> and wide<T>: the variants of rows/geometry.h's held rows.
#define SDORT_HELD_KERNELS(name, Args, body, wide)           \
    SDORT_ROW_KERNEL(name, w1v1, Args, (body<T, 1, 1>)) \
    SDORT_ROW_KERNEL(name, w1v2, Args, (body<T, 1, 2>)) \
    SDORT_ROW_KERNEL(name, w1v3, Args, (body<T, 1, 3>)) \
    SDORT_ROW_KERNEL(name, w2v1, Args, (body<T, 2, 1>)) \
    SDORT_ROW_KERNEL(name, w2v2, Args, (body<T, 2, 2>)) \
    SDORT_ROW_KERNEL(name, w2v3, Args, (body<T, 2, 3>)) \
    SDORT_ROW_KERNEL(name, w4v1, Args, (body<T, 4, 1>)) \
    SDORT_ROW_KERNEL(name, w4v2, Args, (body<T, 4, 2>)) \
    SDORT_ROW_KERNEL(name, w4v3, Args, (body<T, 4, 3>)) \
    SDORT_ROW_KERNEL(name, wide, Args, wide<T>)

// Of the grid.
SDORT_INLINE uint32_t global_index() { return static_cast<uint32_t>(block_index()) * kThreads + thread_index(); }

template <class T>
SDORT_INLINE const T* at(const void* base, size_t index) {
    return static_cast<const T*>(base) + index;
}

template <class T, int N>
SDORT_INLINE Pack<T, N> pack_at(const void* base, size_t index) {
    return *reinterpret_cast<const Pack<T, N>*>(at<T>(base, index));
}

// Of a row: W waves' sums, the same bits in all of them. `shelf` has room for a float a wave of the block.
template <int W>
SDORT_INLINE float row_sum(float value, float* shelf) {
    value = wave_sum(value);
    if constexpr (W > 1) {
        const int wave = thread_index() / kWave;
        if (lane_index() == 0) shelf[wave] = value;
        block_barrier();
        value = 0.0f;
#pragma unroll
        for (int i = 0; i < W; ++i) value += shelf[wave / W * W + i];
    }
    return value;
}

}  // namespace sdort::rows
