// Loads, stores and atomic operations. Of memory: addr in src[0], data in src[1] and src[2], the scalar base in `mask`.
#pragma once

#include <array>

#include "vector.h"

namespace emulator::own {

// Copies to memory; whether anything changed is what tells a wave that waits from one that works.
inline void put(Device& d, void* to, const void* from, unsigned bytes) {
    if (std::memcmp(to, from, bytes) == 0) return;
    std::memcpy(to, from, bytes);
    ++d.changes;
}

// What a lane has in the registers at `data`.
template <unsigned Count>
std::array<uint32_t, Count> words_of(const Wave& w, const uint32_t* data, unsigned lane, unsigned shift = 0) {
    std::array<uint32_t, Count> words;
    for (unsigned word = 0; word < Count; ++word) words[word] = data[word * w.lanes + lane] >> shift;
    return words;
}

inline char* shared_at(Wave& w, uint64_t address, unsigned bytes, unsigned alignment, int lane) {
    if (address + bytes > w.device->launch.lds) throw Fault{"access outside LDS", std::to_string(bytes) + " bytes", lane, address};
    if (address % alignment) throw Fault{"misaligned access to LDS", std::to_string(bytes) + " bytes", lane, address};
    return w.block->shared() + address;
}

inline char* memory_at(Wave& w, uint64_t address, unsigned bytes, unsigned alignment, bool write, int lane) {
    if (address % alignment) throw Fault{"misaligned access", std::to_string(bytes) + " bytes", lane, address};
    w.device->check(address, bytes, write, lane);
    return reinterpret_cast<char*>(address);
}

constexpr unsigned natural(unsigned bytes) { return bytes < 4 ? bytes : 4; }
constexpr unsigned natural_shared(unsigned bytes) { return bytes == 12 ? 16 : bytes; }

// The address that a lane of a global or flat access names; a flat one may be of LDS.
inline uint64_t address_of(Wave& w, const Instruction& i, unsigned lane) {
    uint64_t address;
    if (i.mask == kNone) {
        const uint32_t* const low = w.row(i.src[0], 2);
        address = low[lane] | static_cast<uint64_t>(low[w.lanes + lane]) << 32;
    } else {
        address = w.scalar64(i.mask, i) + w.row(i.src[0], 1)[lane];
    }
    return address + static_cast<int64_t>(i.immediate);
}
inline bool is_shared(uint64_t address) { return address >> 32 == Device::kAperture >> 32; }

// What it points to.
template <bool Flat>
char* pointed(Wave& w, const Instruction& i, unsigned lane, unsigned bytes, unsigned alignment, bool write) {
    const uint64_t address = address_of(w, i, lane);
    if (Flat && is_shared(address))
        return shared_at(w, address & 0xffffffff, bytes, alignment, static_cast<int>(lane));
    return memory_at(w, address, bytes, alignment, write, static_cast<int>(lane));
}

template <class Type>
uint32_t extended(const char* from) {
    Type value;
    std::memcpy(&value, from, sizeof value);
    return static_cast<uint32_t>(value);
}

template <bool Flat, unsigned Words>
void load(Wave& w, const Instruction& i) {
    const uint64_t exec = w.exec();
    uint32_t* const out = w.row(i.dst, Words);
    for (unsigned l = 0; l < w.lanes; ++l) {
        if (!(exec >> l & 1)) continue;
        const char* const from = pointed<Flat>(w, i, l, 4 * Words, 4, false);
        for (unsigned word = 0; word < Words; ++word) std::memcpy(&out[word * w.lanes + l], from + 4 * word, 4);
    }
}

template <bool Flat, class Type>
void load_narrow(Wave& w, const Instruction& i) {
    const uint64_t exec = w.exec();
    uint32_t* const out = w.row(i.dst, 1);
    for (unsigned l = 0; l < w.lanes; ++l)
        if (exec >> l & 1) out[l] = extended<Type>(pointed<Flat>(w, i, l, sizeof(Type), sizeof(Type), false));
}

// Into one half of the register; the other one stays.
template <bool Flat, bool High>
void load_half(Wave& w, const Instruction& i) {
    const uint64_t exec = w.exec();
    uint32_t* const out = w.row(i.dst, 1);
    for (unsigned l = 0; l < w.lanes; ++l) {
        if (!(exec >> l & 1)) continue;
        const uint32_t half = extended<uint16_t>(pointed<Flat>(w, i, l, 2, 2, false));
        out[l] = High ? (out[l] & 0xffff) | half << 16 : (out[l] & 0xffff0000) | half;
    }
}

template <bool Flat, unsigned Bytes, unsigned Shift = 0>
void store(Wave& w, const Instruction& i) {
    constexpr unsigned kWords = (Bytes + 3) / 4;
    const uint64_t exec = w.exec();
    const uint32_t* const data = w.row(i.src[1], kWords);
    for (unsigned l = 0; l < w.lanes; ++l) {
        if (!(exec >> l & 1)) continue;
        const auto words = words_of<kWords>(w, data, l, Shift);
        put(*w.device, pointed<Flat>(w, i, l, Bytes, natural(Bytes), true), words.data(), Bytes);
    }
}

// Function: (old value, operand) -> new value; the old one is returned where the instruction asks for it.
template <class Type, bool Flat, class Function>
void atomic(Wave& w, const Instruction& i, Function function) {
    constexpr unsigned kWords = sizeof(Type) / 4;
    const uint64_t exec = w.exec();
    const uint32_t* const data = w.row(i.src[1], kWords);
    for (unsigned l = 0; l < w.lanes; ++l) {
        if (!(exec >> l & 1)) continue;
        uint32_t words[2] = {data[l], kWords == 2 ? data[w.lanes + l] : 0};
        Type operand, old;
        std::memcpy(&operand, words, sizeof operand);
        char* const at = pointed<Flat>(w, i, l, sizeof(Type), sizeof(Type), true);
        std::memcpy(&old, at, sizeof old);
        const Type next = function(old, operand);
        put(*w.device, at, &next, sizeof next);
        if (!(i.flags & kReturns)) continue;
        std::memcpy(words, &old, sizeof old);
        uint32_t* const out = w.row(i.dst, kWords);
        for (unsigned word = 0; word < kWords; ++word) out[word * w.lanes + l] = words[word];
    }
}
template <class Type, bool Flat>
void atomic_add(Wave& w, const Instruction& i) {
    atomic<Type, Flat>(w, i, [](Type old, Type operand) { return static_cast<Type>(old + operand); });
}
template <class Type, bool Flat>
void atomic_swap(Wave& w, const Instruction& i) {
    atomic<Type, Flat>(w, i, [](Type, Type operand) { return operand; });
}
template <class Type, bool Flat>
void atomic_or(Wave& w, const Instruction& i) {
    atomic<Type, Flat>(w, i, [](Type old, Type operand) { return static_cast<Type>(old | operand); });
}

// LDS: one address with an offset, or two with one each, which count units of `step` bytes ("2addr"). Sums wrap at 32 bits
// (LLVM, hasUsableDSOffset).
inline uint32_t shared_address(Wave& w, const Instruction& i, unsigned lane) {
    return w.row(i.src[0], 1)[lane] + static_cast<uint32_t>(i.immediate);
}
inline uint32_t shared_address(Wave& w, const Instruction& i, unsigned lane, unsigned n, unsigned step) {
    return w.row(i.src[0], 1)[lane] + (i.immediate >> 8 * n & 0xff) * step;
}

template <unsigned Bytes>
void ds_load(Wave& w, const Instruction& i) {
    constexpr unsigned kWords = Bytes / 4;
    const uint64_t exec = w.exec();
    uint32_t* const out = w.row(i.dst, kWords);
    for (unsigned l = 0; l < w.lanes; ++l) {
        if (!(exec >> l & 1)) continue;
        const uint32_t address = shared_address(w, i, l);
        const char* const from = shared_at(w, address, Bytes, natural_shared(Bytes), static_cast<int>(l));
        for (unsigned word = 0; word < kWords; ++word) std::memcpy(&out[word * w.lanes + l], from + 4 * word, 4);
    }
}

template <class Type>
void ds_load_narrow(Wave& w, const Instruction& i) {
    const uint64_t exec = w.exec();
    uint32_t* const out = w.row(i.dst, 1);
    for (unsigned l = 0; l < w.lanes; ++l) {
        if (!(exec >> l & 1)) continue;
        const uint32_t address = shared_address(w, i, l);
        out[l] = extended<Type>(shared_at(w, address, sizeof(Type), sizeof(Type), static_cast<int>(l)));
    }
}

template <unsigned Bytes>
void ds_store(Wave& w, const Instruction& i) {
    constexpr unsigned kWords = (Bytes + 3) / 4;
    const uint64_t exec = w.exec();
    const uint32_t* const data = w.row(i.src[1], kWords);
    for (unsigned l = 0; l < w.lanes; ++l) {
        if (!(exec >> l & 1)) continue;
        const auto words = words_of<kWords>(w, data, l);
        const uint32_t address = shared_address(w, i, l);
        put(*w.device, shared_at(w, address, Bytes, natural_shared(Bytes), static_cast<int>(l)), words.data(), Bytes);
    }
}

template <unsigned Words, unsigned Step>
void ds_load_two(Wave& w, const Instruction& i) {
    const uint64_t exec = w.exec();
    uint32_t* const out = w.row(i.dst, 2 * Words);
    for (unsigned l = 0; l < w.lanes; ++l) {
        if (!(exec >> l & 1)) continue;
        uint32_t read[2 * Words];  // the register of the address may be one of the results
        for (unsigned n = 0; n < 2; ++n) {
            const uint32_t address = shared_address(w, i, l, n, Step);
            std::memcpy(read + n * Words, shared_at(w, address, 4 * Words, 4 * Words, static_cast<int>(l)), 4 * Words);
        }
        for (unsigned word = 0; word < 2 * Words; ++word) out[word * w.lanes + l] = read[word];
    }
}

template <unsigned Words, unsigned Step>
void ds_store_two(Wave& w, const Instruction& i) {
    const uint64_t exec = w.exec();
    for (unsigned l = 0; l < w.lanes; ++l) {
        if (!(exec >> l & 1)) continue;
        for (unsigned n = 0; n < 2; ++n) {
            const uint32_t* const data = w.row(i.src[1 + n], Words);
            const auto words = words_of<Words>(w, data, l);
            const uint32_t address = shared_address(w, i, l, n, Step);
            put(*w.device, shared_at(w, address, 4 * Words, 4 * Words, static_cast<int>(l)), words.data(), 4 * Words);
        }
    }
}

// Scalar loads: base in src[0], a register offset in src[1].
template <unsigned Words>
void scalar_load(Wave& w, const Instruction& i) {
    uint64_t address = w.scalar64(i.src[0], i) + static_cast<int64_t>(i.immediate);
    if (i.src[1] != kNone) address += w.scalar(i.src[1], i);
    const char* const from = memory_at(w, address, 4 * Words, 4, false, -1);
    for (unsigned word = 0; word < Words; ++word) {
        uint32_t value;
        std::memcpy(&value, from + 4 * word, 4);
        w.set_scalar(i.dst + word, value);
    }
}

}  // namespace emulator::own
