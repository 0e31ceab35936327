// The state of the emulated machine: waves in blocks on a device, and the faults that end a run.
#pragma once

#include <cstdint>
#include <cstdio>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

namespace emulator {

enum Family : uint32_t { kCdna = 0, kRdna3 = 1, kRdna4 = 2 };

// Codes of operands, as instructions encode them: 0 to 127 scalar registers, 128 to 255 constants, 256 to 511 vector
// registers; 512 to 767 are the accumulation registers of CDNA.
enum Code : uint16_t {
    kVcc = 106, kTtmp7 = 115, kTtmp9 = 117, kNullRdna = 124, kExec = 126, kSharedBase = 235, kVccz = 251, kExecz = 252,
    kScc = 253, kLiteral = 255, kVector = 256, kAccumulation = 512, kNone = 0xffff
};

enum Flag : uint8_t { kDpp = 1, kSdwa = 2, kBoundControl = 4, kFetchInactive = 8, kDual = 16, kReturns = 32 };

// One static instruction; tests/emulator/decode.py packs it.
struct Instruction {
    uint16_t operation;  // in table(); 0: not implemented
    uint16_t bytes;      // 0: the second half of a dual instruction
    uint16_t dst;
    uint16_t sdst;  // a second result in scalar registers: a mask of lanes
    uint16_t src[3];
    uint16_t mask;  // scalar registers with one bit a lane: a carry or a selection
    uint32_t literal;
    int32_t immediate;
    uint8_t width[4];  // bytes of dst and src: 2, 4 or 8; 0: there is none
    uint8_t neg, abs, opsel, opsel_hi, neg_hi, omod, clamp, flags;
    uint16_t dpp;
    uint8_t dpp_masks;              // row mask << 4 | bank mask
    uint8_t sdwa_dst;               // select | unused << 3
    uint8_t sdwa_src[2];            // select | sign extension << 3
    uint8_t padding[2];
};
static_assert(sizeof(Instruction) == 44);

struct Range {
    uint64_t begin, end, writable;
};

// What emulate() gets; tests/emulator/core.py packs it.
struct Launch {
    uint64_t kernarg, seed;
    const Range* ranges;
    uint32_t range_count, grid[2], threads, wave, family, registers, accumulation_offset, lds, kernarg_register,
        user_registers, workgroup_ids, ieee, flushes_products, resident;
    uint32_t first, blocks;  // which of the grid's blocks run: so many from the first on
};

struct Report {
    char kind[64];
    char text[1024];
    uint64_t address;
    uint64_t instructions;  // executed by all waves
    uint32_t index;         // of the instruction in the program
    uint32_t offset;        // and in bytes from the kernel's entry
    int32_t lane;           // -1: none in particular
    uint32_t block[2], wave;
};

struct Fault {
    std::string kind, text;
    int lane = -1;
    uint64_t address = 0;
};

struct Random {
    uint64_t state;
    uint64_t next() {  // splitmix64
        uint64_t z = state += 0x9e3779b97f4a7c15;
        z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9;
        z = (z ^ z >> 27) * 0x94d049bb133111eb;
        return z ^ z >> 31;
    }
    uint32_t below(uint32_t limit) { return static_cast<uint32_t>((next() >> 32) * limit >> 32); }
    void fill(std::vector<uint32_t>& words) {
        for (auto& word : words) word = static_cast<uint32_t>(next());
    }
};

enum class State : uint8_t { kRuns, kWaits, kEnded };

struct Block;
struct Device;
class Counter;

struct Wave {
    Device* device;
    Block* block;
    uint32_t index;  // in the block
    uint32_t lanes;  // of a wave
    Family family;
    State state = State::kRuns;
    bool scc, yields = false;
    bool signalled = false, complete = false;  // of gfx12's split barrier
    uint32_t pc = 0, next = 0;                 // indices into the program
    uint32_t idle = 0;                         // sleeps since anybody changed memory
    uint64_t seen = 0;                         // the device's changes at the last sleep
    alignas(8) uint32_t sgpr[128];
    std::vector<uint32_t> vgpr;  // [register][lane]

    uint64_t all() const { return lanes == 64 ? ~0ull : 0xffffffffull; }
    uint64_t pair(unsigned code) const { return sgpr[code] | static_cast<uint64_t>(sgpr[code + 1]) << 32; }
    uint64_t exec() const { return pair(kExec) & all(); }
    uint64_t vcc() const { return pair(kVcc) & all(); }
    void set_exec(uint64_t value) {
        sgpr[kExec] = static_cast<uint32_t>(value);
        sgpr[kExec + 1] = lanes == 64 ? static_cast<uint32_t>(value >> 32) : 0;
    }
    inline uint32_t* row(unsigned code, unsigned registers);
    inline bool is_null(unsigned code) const { return family != kCdna && code == kNullRdna; }
    inline uint32_t scalar(unsigned code, const Instruction& i) const;
    inline uint64_t scalar64(unsigned code, const Instruction& i) const;
    inline uint64_t mask(unsigned code) const;
    inline void set_scalar(unsigned code, uint32_t value);
    inline void set_scalar64(unsigned code, uint64_t value);
    inline void set_mask(unsigned code, uint64_t value);
};

struct Block {
    uint32_t id[2];
    std::vector<std::unique_ptr<Wave>> waves;
    std::vector<uint32_t> lds;
    uint32_t live = 0;
    char* shared() { return reinterpret_cast<char*>(lds.data()); }
};

using Run = void (*)(Wave&, const Instruction&);

struct Device {
    const Launch& launch;
    const Instruction* program;
    uint32_t count;
    std::vector<Run> run;
    std::vector<uint32_t> offsets;  // instruction -> bytes from the entry
    std::vector<uint32_t> at;       // words from the entry -> instruction, or kNowhere
    Random random;
    uint64_t changes = 0;   // stores that altered memory
    uint64_t executed = 0;
    uint32_t last_range = 0;
    Counter* counter = nullptr;
    static constexpr uint32_t kNowhere = ~0u;
    static constexpr uint64_t kAperture = 1ull << 48;  // flat addresses of LDS: beyond what a host program has

    void check(uint64_t address, unsigned bytes, bool write, int lane) {
        bool read_only = false;
        for (uint32_t n = 0; n <= launch.range_count; ++n) {
            const uint32_t r = n ? n - 1 : last_range;
            if (r >= launch.range_count) continue;
            const Range& range = launch.ranges[r];
            if (address < range.begin || address + bytes > range.end || address + bytes < address) continue;
            if (!write || range.writable) {
                last_range = r;
                return;
            }
            read_only = true;
        }
        const char* const kind = read_only ? "write to read-only memory" : write ? "write outside memory" : "read outside memory";
        throw Fault{kind, std::to_string(bytes) + " bytes", lane, address};
    }
};

inline uint32_t* Wave::row(unsigned code, unsigned registers) {
    unsigned index = code - kVector;
    const unsigned offset = device->launch.accumulation_offset;
    if (code >= kAccumulation) index = code - kAccumulation + offset;
    const unsigned all = device->launch.registers, end = code < kAccumulation && offset && offset < all ? offset : all;
    if (code < kVector || index + registers > end)
        throw Fault{"register out of range", "v" + std::to_string(index) + " of " + std::to_string(end)};
    return &vgpr[static_cast<size_t>(index) * lanes];
}

inline uint32_t float_constant(unsigned code) {
    static constexpr uint32_t kFloats[] = {0x3f000000, 0xbf000000, 0x3f800000, 0xbf800000, 0x40000000,
                                           0xc0000000, 0x40800000, 0xc0800000, 0x3e22f983};
    return kFloats[code - 240];
}

inline uint32_t Wave::scalar(unsigned code, const Instruction& i) const {
    if (is_null(code)) return 0;
    if (code < 128) return sgpr[code];
    if (code <= 192) return code - 128;
    if (code <= 208) return static_cast<uint32_t>(192 - static_cast<int>(code));
    if (code >= 240 && code <= 248) return float_constant(code);
    if (code == kLiteral) return i.literal;
    if (code == kScc) return scc;
    if (code == kVccz) return vcc() == 0;
    if (code == kExecz) return exec() == 0;
    throw Fault{"operand not implemented", "code " + std::to_string(code)};
}

inline uint64_t Wave::scalar64(unsigned code, const Instruction& i) const {
    if (is_null(code)) return 0;
    if (code < 128) {
        if (code % 2) throw Fault{"misaligned scalar registers", "s" + std::to_string(code)};
        return pair(code);
    }
    if (code == kSharedBase) return Device::kAperture;
    if (code >= 240 && code <= 248) {
        double value;
        float single;
        const uint32_t bits = float_constant(code);
        std::memcpy(&single, &bits, 4);
        value = code == 248 ? 0.15915494309189532 : single;
        uint64_t out;
        std::memcpy(&out, &value, 8);
        return out;
    }
    const uint32_t low = scalar(code, i);
    return code <= 208 ? static_cast<uint64_t>(static_cast<int64_t>(static_cast<int32_t>(low))) : low;
}

inline uint64_t Wave::mask(unsigned code) const {
    if (is_null(code)) return 0;
    if (code >= 128) throw Fault{"operand not implemented", "a mask in code " + std::to_string(code)};
    return lanes == 64 ? pair(code) : sgpr[code];
}

inline void Wave::set_scalar(unsigned code, uint32_t value) {
    if (is_null(code)) return;
    if (code >= 128) throw Fault{"operand not implemented", "result in code " + std::to_string(code)};
    if (code == kExec + 1 && lanes == 32) value = 0;
    sgpr[code] = value;
}

inline void Wave::set_scalar64(unsigned code, uint64_t value) {
    if (is_null(code)) return;
    if (code % 2) throw Fault{"misaligned scalar registers", "s" + std::to_string(code)};
    set_scalar(code, static_cast<uint32_t>(value));
    set_scalar(code + 1, static_cast<uint32_t>(value >> 32));
}

inline void Wave::set_mask(unsigned code, uint64_t value) {
    if (lanes == 64) return set_scalar64(code, value);
    set_scalar(code, static_cast<uint32_t>(value));
}

}  // namespace emulator
