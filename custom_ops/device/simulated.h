// A CPU that runs a grid the way a GPU does, to test kernels without one. See device.h.
//
// Every thread is a coroutine: barriers, shuffles and spin loops switch to another one, so lanes, waves, barriers and
// blocks that wait for each other are all real. Two waves sizes and each matrix instruction's register layout are
// chosen when a kernel is compiled: -DSDORT_SIMULATED_WAVE=32|64 and one -DSDORT_MATRIX_* (matrix.h).
#pragma once

#include <math.h>
#include <string.h>

#include <deque>
#include <functional>
#include <utility>
#include <vector>

#define SDORT_SIMULATED 1
#define SDORT_INLINE inline
#define SDORT_SHARED(type, name, count)   \
    static const char name##_site = 0;    \
    type* const name = static_cast<type*>( \
        ::sdort::simulator::shared_memory(&name##_site, sizeof(type) * (count), alignof(type)))
#define SDORT_KERNEL(name, threads, Args, body)                                                            \
    static void name##_body(const void* args) { body(*static_cast<const Args*>(args)); }                   \
    static const ::sdort::simulator::Registration name##_registration{#name, threads, sizeof(Args), \
                                                                      alignof(Args), name##_body};
// Every block is resident here.
#define SDORT_KERNEL_RESIDENT(name, threads, blocks, Args, body) SDORT_KERNEL(name, threads, Args, body)

// As on the machine whose matrix instruction it has.
#if defined(SDORT_MATRIX_MMA_SYNC)
#define SDORT_COOPERATIVE 1
#else
#define SDORT_COOPERATIVE 0
#endif

#ifndef SDORT_SIMULATED_WAVE
#define SDORT_SIMULATED_WAVE 32
#endif

namespace sdort {

using half = _Float16;
constexpr int kWave = SDORT_SIMULATED_WAVE;

namespace simulator {

struct Registration {
    Registration(const char* name, int threads, size_t args_size, size_t args_alignment, void (*body)(const void*));
};

struct Position {
    int thread;
    int block[2];
};

const Position& position();
void block_barrier();
void pause();
// Zero before first use? No: filled with NaN bytes, as nobody clears a GPU's shared memory either.
void* shared_memory(const void* site, size_t size, size_t alignment);
// Launch::shared_bytes of it, likewise.
char* room();

// What a thread has asked for that the machine does some time before it is waited for: here as late as can be.
class Later {
public:
    void add(std::function<void()> action) { open_.push_back(std::move(action)); }
    void commit() { groups_.push_back(std::exchange(open_, {})); }
    void finish(size_t but) {
        for (; groups_.size() > but; groups_.pop_front())
            for (const auto& action : groups_.front()) action();
    }

private:
    std::vector<std::function<void()>> open_;
    std::deque<std::vector<std::function<void()>>> groups_;
};
Later& later();

// What every lane of the wave passed, `size` bytes each, kWave of them; valid until this lane's second next exchange.
const void* exchange(const void* mine, size_t size);

}  // namespace simulator

inline int thread_index() { return simulator::position().thread; }
inline int block_index() { return simulator::position().block[0]; }
inline int block_index_y() { return simulator::position().block[1]; }
inline int lane_index() { return thread_index() % kWave; }
inline void block_barrier() { simulator::block_barrier(); }
inline char* room() { return simulator::room(); }

inline float shuffle(float value, int lane) {
    return static_cast<const float*>(simulator::exchange(&value, sizeof value))[lane];
}
template <int Mask>
inline float shuffle_xor(float value) {
    return shuffle(value, lane_index() ^ Mask);
}

inline float fast_exp2(float value) { return exp2f(value); }
inline float fast_rcp(float value) { return 1.0f / value; }
inline float fast_rsqrt(float value) { return 1.0f / sqrtf(value); }

inline int bits(float value) {
    int result;
    memcpy(&result, &value, sizeof result);
    return result;
}
inline float real(int value) {
    float result;
    memcpy(&result, &value, sizeof result);
    return result;
}

inline float widen(half value) { return static_cast<float>(value); }
inline half narrow(float value) { return static_cast<half>(value); }

inline void widen_pair(uint32_t word, float& low, float& high) {
    half pair[2];
    memcpy(pair, &word, sizeof word);
    low = widen(pair[0]);
    high = widen(pair[1]);
}
inline uint32_t narrow_pair(float low, float high) {
    const half pair[2] = {narrow(low), narrow(high)};
    uint32_t word;
    memcpy(&word, pair, sizeof word);
    return word;
}
inline uint32_t multiply_pairs(uint32_t a, uint32_t b) {
    float low, high, other_low, other_high;
    widen_pair(a, low, high);
    widen_pair(b, other_low, other_high);
    return narrow_pair(low * other_low, high * other_high);
}
inline float round_up(float value) { return ceilf(value); }

inline Quad load_streaming(const Quad* source) { return *source; }
inline void store_streaming(Quad* target, const Quad& quad) { *target = quad; }

// Reads, so that an address out of bounds shows.
inline void prefetch(const void* address) { static_cast<void>(*static_cast<const volatile char*>(address)); }

#if SDORT_COOPERATIVE
inline uint64_t ticket(uint64_t* target, uint64_t value, bool take) {
    if (!take) return 0;
    const uint64_t old = *target;
    *target += value;
    return old;
}
inline uint64_t load_word(const uint64_t* source) { return *source; }
inline void load_words(const uint64_t* source, uint64_t& first, uint64_t& second) {
    first = load_word(source);
    second = load_word(source + 1);
}
inline void store_word(uint64_t* target, uint64_t value) { *target = value; }
inline void pause() { simulator::pause(); }
#endif

}  // namespace sdort
