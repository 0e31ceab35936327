// What a wave decides together.
//
//   wave_any(bool)        whether it is true in any lane; all lanes take part
#pragma once

#include "device.h"

namespace sdort {

#if defined(__AMDGCN__)
SDORT_INLINE bool wave_any(bool value) { return __builtin_amdgcn_ballot_w64(value) != 0; }
#elif defined(__CUDACC__)
SDORT_INLINE bool wave_any(bool value) { return __any_sync(0xffffffffu, value); }
#else
inline bool wave_any(bool value) {
    const bool* const all = static_cast<const bool*>(simulator::exchange(&value, sizeof value));
    for (int lane = 0; lane < kWave; ++lane)
        if (all[lane]) return true;
    return false;
}
#endif

}  // namespace sdort
