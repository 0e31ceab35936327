// What attention's kernels for Hopper share: tiles on their way to a warpgroup's products (device/wgmma.h).
#pragma once

#include "device/wgmma.h"
#include "stage.h"

#if defined(SDORT_WGMMA)

namespace sdort::attention::wgmma_stage {

// The first multiple of 1024 bytes in room().
SDORT_INLINE char* buffers() { return room() + (-wgmma::address_of(room()) & 1023); }

// `Rows` rows of `Units` units of 16 bytes; from(row, unit) is where a unit comes from. Eight threads a row, also where some of
// them have no unit: a row's address then needs no division.
template <int Rows, int Units, class From>
SDORT_INLINE void fetch(char* tile, From from) {
    constexpr int kAtOnce = kWgmmaThreads / 8;
    const int unit = thread_index() % 8;
    if (unit >= Units) return;
#pragma unroll
    for (int i = 0; i < Rows / kAtOnce; ++i) {
        const int row = thread_index() / 8 + i * kAtOnce;
        copy_async(reinterpret_cast<Quad*>(tile + wgmma::place(row, unit)), reinterpret_cast<const Quad*>(from(row, unit)));
    }
}

// fetch(step, buffer) Stages - 2 steps ahead, and use(step, buffer), which queues products: those of the step before are
// done when it returns, so that the buffer of two steps ago is free behind the barrier.
template <int Stages, class Fetch, class Use>
SDORT_INLINE void each_step(char* all, int bytes, int steps, Fetch fetch, Use use) {
#pragma unroll
    for (int i = 0; i < Stages - 2; ++i) {
        if (i < steps) fetch(i, all + i * bytes);
        commit_copies();
    }
#pragma unroll 2
    for (int i = 0; i < steps; ++i) {
        wait_for_copies<Stages - 3>();
        wgmma::publish();
        block_barrier();
        const int next = i + Stages - 2;
        if (next < steps) fetch(next, all + next % Stages * bytes);
        commit_copies();
        use(i, wgmma::address_of(all + i % Stages * bytes));
        wgmma::commit();
        wgmma::wait<1>();
    }
    wgmma::wait<0>();
}

// `combine` of the values of the four lanes that have one row's sums.
template <class Combine>
SDORT_INLINE float over_row(float value, Combine combine) {
    value = combine(value, shuffle_xor<1>(value));
    return combine(value, shuffle_xor<2>(value));
}

}  // namespace sdort::attention::wgmma_stage

#endif
