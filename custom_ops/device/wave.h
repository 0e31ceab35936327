// What a wave decides together.
//
//   wave_any(bool)        whether it is true in any lane; all lanes take part
//   wave_of(thread)       the number of its wave in the block. Branches on it are taken by whole waves, and the machine
//                         is told, so that lanes may exchange in them
//   thread_index_again(), block_index_again(), block_index_y_again()
//                         the same numbers, asked of the machine anew: what is computed from them at a kernel's end is then
//                         not kept in registers from its beginning on
#pragma once

#include "device.h"

namespace sdort {

#if defined(__AMDGCN__)  // wave_any and same_in_wave: amd_lanes.h
#elif defined(__CUDACC__)
SDORT_INLINE bool wave_any(bool value) { return __any_sync(0xffffffffu, value); }
SDORT_INLINE int same_in_wave(int value) { return value; }
SDORT_INLINE int thread_index_again() {
    int index;
    asm volatile("mov.u32 %0, %%tid.x;" : "=r"(index));
    return index;
}
SDORT_INLINE int block_index_again() {
    int index;
    asm volatile("mov.u32 %0, %%ctaid.x;" : "=r"(index));
    return index;
}
SDORT_INLINE int block_index_y_again() {
    int index;
    asm volatile("mov.u32 %0, %%ctaid.y;" : "=r"(index));
    return index;
}
#else
inline bool wave_any(bool value) {
    const bool* const all = static_cast<const bool*>(simulator::exchange(&value, sizeof value));
    for (int lane = 0; lane < kWave; ++lane)
        if (all[lane]) return true;
    return false;
}
inline int same_in_wave(int value) { return value; }
#endif

SDORT_INLINE int wave_of(int thread) { return same_in_wave(thread / kWave); }

#if !defined(__CUDACC__)  // where they take no registers of the lanes, or nobody counts them
SDORT_INLINE int thread_index_again() { return thread_index(); }
SDORT_INLINE int block_index_again() { return block_index(); }
SDORT_INLINE int block_index_y_again() { return block_index_y(); }
#endif

}  // namespace sdort
