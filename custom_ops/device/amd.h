// AMD GPUs: clang builtins only, so that neither ROCm nor its headers are needed to compile. See device.h.
#pragma once

#define SDORT_INLINE __attribute__((device)) inline __attribute__((always_inline))
#define SDORT_SHARED(type, name, count) __attribute__((shared)) type name[count]
#define SDORT_KERNEL(name, threads, Args, body)                                                                   \
    extern "C" __attribute__((global)) __attribute__((amdgpu_flat_work_group_size(threads, threads))) void name( \
        const Args args) {                                                                                        \
        body(args);                                                                                               \
    }
// HIP launches a cooperative grid through a queue of its own, with a kernel before it and waits of the host around it.
#define SDORT_COOPERATIVE 0
// Compute units and, since RDNA, work-group processors have four SIMDs each.
#define SDORT_KERNEL_RESIDENT(name, threads, blocks, Args, body)                                                  \
    extern "C" __attribute__((global)) __attribute__((amdgpu_flat_work_group_size(threads, threads)))             \
    __attribute__((amdgpu_waves_per_eu(((threads) / ::sdort::kWave * (blocks) + 3) / 4))) void name(const Args args) { \
        body(args);                                                                                               \
    }

#if defined(__gfx90a__) || defined(__gfx942__) || defined(__gfx950__)
#define SDORT_MATRIX_MFMA 1
#elif defined(__GFX11__)
#define SDORT_MATRIX_WMMA_GFX11 1
#elif defined(__GFX12__)
#define SDORT_MATRIX_WMMA_GFX12 1
#endif

namespace sdort {

using half = _Float16;

#if defined(__GFX9__)
constexpr int kWave = 64;
#else
constexpr int kWave = 32;
#endif

SDORT_INLINE int thread_index() { return __builtin_amdgcn_workitem_id_x(); }
SDORT_INLINE int block_index() { return __builtin_amdgcn_workgroup_id_x(); }
SDORT_INLINE int block_index_y() { return __builtin_amdgcn_workgroup_id_y(); }
SDORT_INLINE int lane_index() { return thread_index() % kWave; }

SDORT_INLINE void block_barrier() {
    __builtin_amdgcn_fence(__ATOMIC_RELEASE, "workgroup");
    __builtin_amdgcn_s_barrier();
    __builtin_amdgcn_fence(__ATOMIC_ACQUIRE, "workgroup");
}

SDORT_INLINE int bits(float value) { return __builtin_bit_cast(int, value); }
SDORT_INLINE float real(int value) { return __builtin_bit_cast(float, value); }

SDORT_INLINE float fast_exp2(float value) { return __builtin_amdgcn_exp2f(value); }
SDORT_INLINE float fast_rcp(float value) { return __builtin_amdgcn_rcpf(value); }
SDORT_INLINE float fast_rsqrt(float value) { return __builtin_amdgcn_rsqf(value); }
SDORT_INLINE float fmaxf(float a, float b) { return __builtin_fmaxf(a, b); }
SDORT_INLINE float fminf(float a, float b) { return __builtin_fminf(a, b); }
SDORT_INLINE float fmaf(float a, float b, float c) { return __builtin_fmaf(a, b, c); }
SDORT_INLINE float fabsf(float a) { return __builtin_fabsf(a); }

SDORT_INLINE float widen(half value) { return static_cast<float>(value); }
SDORT_INLINE half narrow(float value) { return static_cast<half>(value); }

SDORT_INLINE void widen_pair(uint32_t word, float& low, float& high) {
    typedef half Pair __attribute__((ext_vector_type(2)));
    const Pair pair = __builtin_bit_cast(Pair, word);
    low = static_cast<float>(pair.x);
    high = static_cast<float>(pair.y);
}
SDORT_INLINE uint32_t narrow_pair(float low, float high) {
    typedef half Pair __attribute__((ext_vector_type(2)));
    return __builtin_bit_cast(uint32_t, Pair{static_cast<half>(low), static_cast<half>(high)});
}
SDORT_INLINE uint32_t multiply_pairs(uint32_t a, uint32_t b) {
    typedef half Pair __attribute__((ext_vector_type(2)));
    return __builtin_bit_cast(uint32_t, __builtin_bit_cast(Pair, a) * __builtin_bit_cast(Pair, b));
}
SDORT_INLINE float round_up(float value) { return __builtin_ceilf(value); }

// By one instruction each.
SDORT_INLINE uint32_t low_halves(uint32_t first, uint32_t second) { return __builtin_amdgcn_perm(second, first, 0x05040100u); }
SDORT_INLINE uint32_t high_halves(uint32_t first, uint32_t second) { return __builtin_amdgcn_perm(second, first, 0x07060302u); }
SDORT_INLINE uint32_t multiply_24(uint32_t a, uint32_t b) { return (a & 0xffffffu) * (b & 0xffffffu); }
SDORT_INLINE int within(int index, int count) { return index < count - 1 ? index : count - 1; }  // a minimum
// The base in scalar registers, bytes in one of the lane's.
template <class T>
SDORT_INLINE const T* element(const T* base, uint32_t index) {
    return reinterpret_cast<const T*>(reinterpret_cast<const char*>(base) + index * static_cast<uint32_t>(sizeof(T)));
}

typedef uint32_t QuadVector __attribute__((ext_vector_type(4)));
// As a vector: a struct's words are stored by two of 8 bytes in LDS.
SDORT_INLINE void store_quad(Quad* target, const Quad& quad) {
    *reinterpret_cast<QuadVector*>(target) = __builtin_bit_cast(QuadVector, quad);
}
SDORT_INLINE Quad load_streaming(const Quad* source) {
    return __builtin_bit_cast(Quad, __builtin_nontemporal_load(reinterpret_cast<const QuadVector*>(source)));
}
SDORT_INLINE void store_streaming(Quad* target, const Quad& quad) {
    __builtin_nontemporal_store(__builtin_bit_cast(QuadVector, quad), reinterpret_cast<QuadVector*>(target));
}

SDORT_INLINE void prefetch(const void*) {}  // there is an instruction since gfx12 only

}  // namespace sdort

#include "amd_lanes.h"
