// What kernels of rows are made of, on the device.
#pragma once

#include "device/wave.h"
#include "rows/rows.h"

namespace sdort::rows {

// One instance for float32 and one for float16: kernels name_f32_variant and name_f16_variant. `body` may use the type T:
// (body<T, kVector<T>>), in parentheses if it has a comma.
#define SDORT_ROW_KERNEL(name, variant, Args, body) SDORT_ROW_KERNEL_OF(name, variant, ::sdort::rows::kThreads, Args, body)
#define SDORT_ROW_KERNEL_OF(name, variant, threads, Args, body)                \
    SDORT_KERNEL(name##_f32_##variant, threads, Args, using T = float; body) \
    SDORT_KERNEL(name##_f16_##variant, threads, Args, using T = half; body)

// body<T, N> with N elements an access: the variants of rows/geometry.h's columns.
#define SDORT_COLUMN_KERNELS(name, Args, body)                        \
    SDORT_ROW_KERNEL(name, vector, Args, (body<T, kVector<T>>)) \
    SDORT_ROW_KERNEL(name, narrow, Args, (body<T, 1>))

// body<T, lanes, vectors> and again<T>: the variants of rows/geometry.h's held rows.
#define SDORT_HELD_KERNEL(name, lanes, vectors, Args, body) \
    SDORT_ROW_KERNEL_OF(name, l##lanes##v##vectors, ::sdort::rows::kHeldThreads, Args, (body<T, lanes, vectors>))
#define SDORT_HELD_KERNELS(name, Args, body, again)  \
    SDORT_HELD_KERNEL(name, 16, 3, Args, body)  \
    SDORT_HELD_KERNEL(name, 16, 5, Args, body)  \
    SDORT_HELD_KERNEL(name, 32, 1, Args, body)  \
    SDORT_HELD_KERNEL(name, 32, 2, Args, body)  \
    SDORT_HELD_KERNEL(name, 32, 3, Args, body)  \
    SDORT_HELD_KERNEL(name, 32, 5, Args, body)  \
    SDORT_HELD_KERNEL(name, 128, 1, Args, body) \
    SDORT_HELD_KERNEL(name, 128, 2, Args, body) \
    SDORT_HELD_KERNEL(name, 128, 3, Args, body) \
    SDORT_HELD_KERNEL(name, 128, 5, Args, body) \
    SDORT_ROW_KERNEL_OF(name, wide, ::sdort::rows::kHeldThreads, Args, again<T>)

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

// Of a row of L lanes, the same bits in all of them. `shelf` has room for a float a wave of the block.
template <int L>
SDORT_INLINE float row_sum(float value, float* shelf) {
    if constexpr (L <= kWave) {
        return lanes_sum<L>(value);
    } else {
        constexpr int kWaves = L / kWave;
        const int wave = thread_index() / kWave;
        value = wave_sum(value);
        if (lane_index() == 0) shelf[wave] = value;
        block_barrier();
        value = 0.0f;
#pragma unroll
        for (int i = 0; i < kWaves; ++i) value += shelf[wave / kWaves * kWaves + i];
        return value;
    }
}

}  // namespace sdort::rows
