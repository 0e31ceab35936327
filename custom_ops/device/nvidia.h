// NVIDIA GPUs, by nvcc. See device.h.
#pragma once

#include <cuda_fp16.h>

#define SDORT_INLINE __device__ __forceinline__
#define SDORT_SHARED(type, name, count) __shared__ type name[count]
#define SDORT_KERNEL(name, threads, Args, body)                                    \
    extern "C" __global__ void __launch_bounds__(threads) name(const Args args) { \
        body(args);                                                                \
    }
#define SDORT_KERNEL_RESIDENT(name, threads, blocks, Args, body)                           \
    extern "C" __global__ void __launch_bounds__(threads, blocks) name(const Args args) { \
        body(args);                                                                        \
    }
#define SDORT_MATRIX_MMA_SYNC 1
#define SDORT_COOPERATIVE 1

namespace sdort {

using half = __half;
constexpr int kWave = 32;

SDORT_INLINE int thread_index() { return threadIdx.x; }
SDORT_INLINE int block_index() { return blockIdx.x; }
SDORT_INLINE int block_index_y() { return blockIdx.y; }
SDORT_INLINE int lane_index() { return threadIdx.x % kWave; }

SDORT_INLINE void block_barrier() { __syncthreads(); }

extern __shared__ char shared_room[];
SDORT_INLINE char* room() { return shared_room; }

SDORT_INLINE float shuffle(float value, int lane) { return __shfl_sync(0xffffffffu, value, lane); }

template <int Mask>
SDORT_INLINE float shuffle_xor(float value) {
    return __shfl_xor_sync(0xffffffffu, value, Mask);
}

SDORT_INLINE float fast_exp2(float value) {
    float result;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(value));
    return result;
}
SDORT_INLINE float fast_rcp(float value) {
    float result;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(value));
    return result;
}
SDORT_INLINE float fast_rsqrt(float value) { return rsqrtf(value); }

SDORT_INLINE int bits(float value) { return __float_as_int(value); }
SDORT_INLINE float real(int value) { return __int_as_float(value); }

SDORT_INLINE float widen(half value) { return __half2float(value); }
SDORT_INLINE half narrow(float value) { return __float2half_rn(value); }

SDORT_INLINE void widen_pair(uint32_t word, float& low, float& high) {
    const float2 pair = __half22float2(*reinterpret_cast<const __half2*>(&word));
    low = pair.x;
    high = pair.y;
}
SDORT_INLINE uint32_t narrow_pair(float low, float high) {
    const __half2 pair = __floats2half2_rn(low, high);
    return *reinterpret_cast<const uint32_t*>(&pair);
}
SDORT_INLINE uint32_t multiply_pairs(uint32_t a, uint32_t b) {
    const __half2 product = __hmul2(*reinterpret_cast<const __half2*>(&a), *reinterpret_cast<const __half2*>(&b));
    return *reinterpret_cast<const uint32_t*>(&product);
}
SDORT_INLINE float round_up(float value) { return ceilf(value); }

SDORT_INLINE Quad load_streaming(const Quad* source) {
    Quad quad;
    asm volatile("ld.global.cs.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(quad.words[0]), "=r"(quad.words[1]), "=r"(quad.words[2]), "=r"(quad.words[3])
                 : "l"(source)
                 : "memory");
    return quad;
}
SDORT_INLINE void store_streaming(Quad* target, const Quad& quad) {
    asm volatile("st.global.cs.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(target), "r"(quad.words[0]), "r"(quad.words[1]),
                 "r"(quad.words[2]), "r"(quad.words[3])
                 : "memory");
}

SDORT_INLINE void prefetch(const void* address) { asm volatile("prefetch.global.L2 [%0];" ::"l"(address)); }

// nvcc stores a struct that was computed word by word in four accesses.
SDORT_INLINE void store_quad(Quad* target, const Quad& quad) {
    asm volatile("st.global.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(target), "r"(quad.words[0]), "r"(quad.words[1]),
                 "r"(quad.words[2]), "r"(quad.words[3])
                 : "memory");
}

SDORT_INLINE uint64_t ticket(uint64_t* target, uint64_t value, bool take) {
    // Zero in lane 0, which nvcc does not know: it would add up a whole wave's values, and wait for the answer to share it.
    // A predicate, since after a branch it would wait too.
    uint32_t zero;
    asm("mov.u32 %0, %%lanemask_lt;" : "=r"(zero));
    uint64_t old = 0;
    asm volatile("{\n.reg .pred take;\nsetp.ne.u32 take, %3, 0;\n@take atom.add.relaxed.gpu.global.u64 %0, [%1], %2;\n}"
                 : "+l"(old)
                 : "l"(target), "l"(value + zero), "r"(static_cast<uint32_t>(take))
                 : "memory");
    return old;
}
SDORT_INLINE uint64_t load_word(const uint64_t* source) {
    uint64_t value;
    asm volatile("ld.relaxed.gpu.global.u64 %0, [%1];" : "=l"(value) : "l"(source) : "memory");
    return value;
}
SDORT_INLINE void load_words(const uint64_t* source, uint64_t& first, uint64_t& second) {
    asm volatile("ld.relaxed.gpu.global.v2.u64 {%0, %1}, [%2];" : "=l"(first), "=l"(second) : "l"(source) : "memory");
}
SDORT_INLINE void store_word(uint64_t* target, uint64_t value) {
    asm volatile("st.relaxed.gpu.global.u64 [%0], %1;" ::"l"(target), "l"(value) : "memory");
}
SDORT_INLINE void pause() { __nanosleep(20); }

}  // namespace sdort
