// What a kernel may use of the machine that runs it: one interface, three machines.
//
//   amd.h        clang for amdgcn (plain clang without ROCm's headers, or hipcc): waves of 64 on gfx9, of 32 later
//   nvidia.h     nvcc: waves (warps) of 32
//   simulated.h  any C++ compiler: every thread of the grid is a coroutine, so the same source is tested on a CPU
//
// Each of them defines, in namespace sdort:
//
//   half, kWave                                     16-bit float; lanes of a wave
//   thread_index(), block_index(), block_index_y()  position; blocks are one-dimensional
//   block_barrier()                                 all threads of the block, with memory ordering in the block
//   shuffle_xor<Mask>(float), shuffle(float, lane)  exchange between the lanes of a wave; all lanes take part
//   fast_exp2, fast_rcp, fast_rsqrt                 one instruction, about 1 ulp of float32
//   widen(half), narrow(float)                      conversions; narrow rounds to nearest even
//   widen_pair(word, low, high), narrow_pair(low, high)
//                                                   two halves that lie in one 32-bit register
//   low_halves(first, second), high_halves          two words' 16 bits each as one word, first's below
//   multiply_24(a, b)                               the product of two numbers below 2^24, if it is below 2^32
//   within(index, count)                            index, or the last one, count - 1
//   element(base, index)                            base + index, of fewer than 2^32 bytes; all lanes have the same base
//   store_quad(target, quad)                        one access of 16 bytes
//   load_streaming, store_streaming                 of a Quad that nobody reads soon: others stay in the cache instead
//   prefetch(address)                               asks for its cache line to be in the device's cache soon, if it can
//   SDORT_SHARED(type, name, count)                 an array that the threads of a block share
//   room()                                          Launch::shared_bytes of shared memory more; not on AMD
//   SDORT_KERNEL(name, threads, Args, body)         the entry point `name`: a block of `threads` runs body(args)
//   SDORT_KERNEL_RESIDENT(name, threads, blocks, Args, body)
//                                                   the same, with few enough registers that `blocks` of them are on a
//                                                   compute unit at a time
//   SDORT_COOPERATIVE                               1 where drivers launch a grid so that all of its blocks are resident, at
//                                                   little cost: only then may blocks wait for each other, and only in
//                                                   kernels that are launched so (Launch::cooperative). Only there are
//     ticket, load_word(s), store_word, pause       uint64_t between blocks, each whole but without any ordering: for
//                                                   counters, and for words that carry a value with the mark of its launch.
//                                                   ticket(target, value, take) adds where `take` is true, in a lane 0
//                                                   alone, and tells what was there before. pause() belongs into a spin loop
//
// A kernel's arguments are one struct, passed by value: what the host packs is what the kernel reads.
#pragma once

#include <stddef.h>
#include <stdint.h>

namespace sdort {
// 16 bytes, the widest access that a lane has, as registers.
struct alignas(16) Quad {
    uint32_t words[4];
};
}  // namespace sdort

#if defined(__AMDGCN__)
#include "amd.h"
#elif defined(__CUDACC__)
#include "nvidia.h"
#else
#include "simulated.h"
#endif

namespace sdort {

// N values that are loaded and stored in one access; 16 bytes is the widest that a lane has.
template <class T, int N>
struct alignas(sizeof(T) * N) Pack {
    T values[N];
    SDORT_INLINE T& operator[](int i) { return values[i]; }
    SDORT_INLINE const T& operator[](int i) const { return values[i]; }
};

template <class T>
constexpr int kVector = 16 / sizeof(T);  // elements of a 16-byte access

SDORT_INLINE float widen(float value) { return value; }

SDORT_INLINE void unpack(const Quad& quad, float (&values)[4]) {
#pragma unroll
    for (int i = 0; i < 4; ++i) values[i] = real(static_cast<int>(quad.words[i]));
}
SDORT_INLINE void unpack(const Quad& quad, float (&values)[8]) {
#pragma unroll
    for (int i = 0; i < 4; ++i) widen_pair(quad.words[i], values[2 * i], values[2 * i + 1]);
}
SDORT_INLINE Quad pack(const float (&values)[4]) {
    Quad quad;
#pragma unroll
    for (int i = 0; i < 4; ++i) quad.words[i] = static_cast<uint32_t>(bits(values[i]));
    return quad;
}
SDORT_INLINE Quad pack(const float (&values)[8]) {
    Quad quad;
#pragma unroll
    for (int i = 0; i < 4; ++i) quad.words[i] = narrow_pair(values[2 * i], values[2 * i + 1]);
    return quad;
}

template <class T>
struct Narrow;
template <>
struct Narrow<float> {
    SDORT_INLINE static float from(float value) { return value; }
};
template <>
struct Narrow<half> {
    SDORT_INLINE static half from(float value) { return narrow(value); }
};

#if !defined(__AMDGCN__)
SDORT_INLINE uint32_t low_halves(uint32_t first, uint32_t second) { return (first & 0xffffu) | second << 16; }
SDORT_INLINE uint32_t high_halves(uint32_t first, uint32_t second) { return first >> 16 | (second & 0xffff0000u); }
SDORT_INLINE uint32_t multiply_24(uint32_t a, uint32_t b) { return a * b; }
SDORT_INLINE int within(int index, int count) { return index < count ? index : count - 1; }
template <class T>
SDORT_INLINE const T* element(const T* base, uint32_t index) {
    return base + index;
}
#if !defined(__CUDACC__)
SDORT_INLINE void store_quad(Quad* target, const Quad& quad) { *target = quad; }
#endif
#endif

// `count` elements from `source`, which is aligned to their size, widened to float.
template <int N, class T>
SDORT_INLINE void load(const T* source, float (&values)[N]) {
    const Pack<T, N> pack = *reinterpret_cast<const Pack<T, N>*>(source);
#pragma unroll
    for (int i = 0; i < N; ++i) values[i] = widen(pack[i]);
}

template <int N, class T>
SDORT_INLINE void store(T* target, const float (&values)[N]) {
    if constexpr (N * sizeof(T) == sizeof(Quad)) {
        store_quad(reinterpret_cast<Quad*>(target), pack(values));
    } else {
        Pack<T, N> pack;
#pragma unroll
        for (int i = 0; i < N; ++i) pack[i] = Narrow<T>::from(values[i]);
        *reinterpret_cast<Pack<T, N>*>(target) = pack;
    }
}

// The sum over each `Lanes` lanes of the wave, a power of two, the same bits in all of them: a butterfly adds the same pairs
// everywhere.
template <int Lanes>
SDORT_INLINE float lanes_sum(float value) {
    if constexpr (Lanes > 1) value += shuffle_xor<1>(value);
    if constexpr (Lanes > 2) value += shuffle_xor<2>(value);
    if constexpr (Lanes > 4) value += shuffle_xor<4>(value);
    if constexpr (Lanes > 8) value += shuffle_xor<8>(value);
    if constexpr (Lanes > 16) value += shuffle_xor<16>(value);
    if constexpr (Lanes > 32) value += shuffle_xor<32>(value);
    return value;
}
SDORT_INLINE float wave_sum(float value) { return lanes_sum<kWave>(value); }

SDORT_INLINE float wave_max(float value) {
    value = fmaxf(value, shuffle_xor<1>(value));
    value = fmaxf(value, shuffle_xor<2>(value));
    value = fmaxf(value, shuffle_xor<4>(value));
    value = fmaxf(value, shuffle_xor<8>(value));
    value = fmaxf(value, shuffle_xor<16>(value));
    if constexpr (kWave == 64) value = fmaxf(value, shuffle_xor<32>(value));
    return value;
}

}  // namespace sdort
