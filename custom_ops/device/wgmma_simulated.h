// wgmma.h by its documentation: a product reads its operands, registers too, when its group is waited for and no sooner, so
// that what is written over too early shows.
#pragma once

namespace sdort::wgmma {

SDORT_INLINE uint32_t address_of(const void* shared) {
    return static_cast<uint32_t>(static_cast<const char*>(shared) - room());
}

SDORT_INLINE void arrive() {}
SDORT_INLINE void commit() { simulator::later().commit(); }
template <int Groups>
SDORT_INLINE void wait() {
    simulator::later().finish(Groups);
}
SDORT_INLINE void publish() {}

// The half at `bytes` from room(), where units of 16 bytes change places by the number of their row of 128 bytes.
SDORT_INLINE float element_at(uint32_t bytes) {
    return widen(*reinterpret_cast<const half*>(room() + (bytes ^ (bytes >> 7 & 7) << 4)));
}

struct Tile {
    uint32_t address, leading, stride;
    explicit Tile(uint64_t descriptor)
        : address((descriptor & 0x3fff) << 4),
          leading((descriptor >> 16 & 0x3fff) << 4),
          stride((descriptor >> 32 & 0x3fff) << 4) {}
    float along(int row, int k) const { return element_at(address + row / 8 * stride + row % 8 * 128 + k * 2); }
    float across(int k, int column) const {
        return element_at(address + column / 64 * leading + k / 8 * stride + k % 8 * 128 + column % 64 * 2);
    }
};

SDORT_INLINE Fragment load(uint32_t tile, int row, int unit) {
    Fragment f;
    for (int i = 0; i < 4; ++i) {
        const int at = tile + place(row + lane_index() / 4 + i % 2 * 8, unit + i / 2) + lane_index() % 4 * 4;
        f.words[i] = *reinterpret_cast<const uint32_t*>(room() + at);
    }
    return f;
}

template <int Length, class Left, class Right>
SDORT_INLINE void multiply_by(float (&d)[Length], Left left, Right right, bool add) {
    const int thread = thread_index() % 128, first = thread / 32 * 16 + thread % 32 / 4;
    for (int i = 0; i < Length; ++i) {
        const int row = first + i / 2 % 2 * 8, column = i / 4 * 8 + thread % 4 * 2 + i % 2;
        float sum = add ? d[i] : 0.0f;
        for (int k = 0; k < 16; ++k) sum += left(row, k) * right(k, column);
        d[i] = sum;
    }
}

template <int Length>
SDORT_INLINE void multiply(float (&d)[Length], uint64_t a, uint64_t b, bool add) {
    simulator::later().add([&d, a = Tile(a), b = Tile(b), add] {
        const auto left = [&](int row, int k) { return a.along(row, k); };
        multiply_by(d, left, [&](int k, int column) { return b.along(column, k); }, add);
    });
}

// A row's values lie in four lanes, which wait for the same group.
template <int Length>
SDORT_INLINE void multiply(float (&d)[Length], const Fragment& a, uint64_t b, bool add) {
    simulator::later().add([&d, &a, b = Tile(b), add] {
        const Fragment* const all = static_cast<const Fragment*>(simulator::exchange(&a, sizeof a));
        const auto value = [&](int row, int k) {
            float low, high;
            widen_pair(all[row % 8 * 4 + k % 8 / 2].words[row / 8 % 2 + k / 8 * 2], low, high);
            return k % 2 ? high : low;
        };
        multiply_by(d, value, [&](int k, int column) { return b.across(k, column); }, add);
    });
}

}  // namespace sdort::wgmma
