// Counts what instructions ask of a machine, seen from outside: a counter looks at each one before it runs.
#pragma once

#include <algorithm>
#include <unordered_set>

#include "memory.h"

namespace emulator {

enum AccessKind : uint8_t { kNoAccess = 0, kGlobal = 1, kShared = 2 };

// How an instruction accesses memory; counts.py makes it of the name.
struct Access {
    uint8_t kind;
    uint8_t write;
    uint8_t bytes;      // of a lane, at one address
    uint8_t addresses;  // of a lane in LDS: 1, or 2 with offsets that count units of `step` bytes
    uint16_t step;
};
static_assert(sizeof(Access) == 6);

// Of one static instruction, all its executions together.
struct Count {
    uint64_t executed;
    uint64_t lanes;         // active ones
    uint64_t bytes;         // of them, asked for
    uint64_t lines;         // cache lines touched, of each execution for itself
    uint64_t least_lines;   // that hold as many different bytes
    uint64_t cycles;        // of LDS: in each phase as many as its busiest bank has words to serve
    uint64_t least_cycles;  // one for each phase that has an active lane
};

// What is counted, and how; counts.py's `Counting`.
struct Counting {
    const Access* accesses;  // of the program's instructions
    Count* counts;
    uint64_t* lines;        // [range][read, written]: different cache lines that the blocks touch, each block for itself
    const uint8_t* phases;  // [4, 8, 16 bytes][read, write][lane]: lanes whose words LDS serves together
    uint32_t line, banks;   // bytes of a cache line; banks of 4 bytes of LDS
};

class Counter {
public:
    Counter(const Counting& to, const Launch& launch) : to_(to), launch_(launch) {}

    void see(Wave& w, const Instruction& i, uint32_t index) {
        Count& count = to_.counts[index];
        const Access& access = to_.accesses[index];
        const uint64_t exec = w.exec();
        ++count.executed;
        count.lanes += static_cast<uint64_t>(__builtin_popcountll(exec));
        if (!exec) return;
        if (access.kind == kGlobal) see_global(w, i, access, exec, count);
        if (access.kind == kShared) see_shared(w, i, access, exec, count);
    }

private:
    void see_global(Wave& w, const Instruction& i, const Access& access, uint64_t exec, Count& count) {
        lines_.clear();
        bytes_.clear();
        for (unsigned l = 0; l < w.lanes; ++l) {
            if (!(exec >> l & 1)) continue;
            const uint64_t address = own::address_of(w, i, l);
            if (own::is_shared(address)) throw Fault{"not counted", "a flat access to LDS", static_cast<int>(l), address};
            for (unsigned byte = 0; byte < access.bytes; ++byte) bytes_.push_back(address + byte);
            for (uint64_t line = address / to_.line; line <= (address + access.bytes - 1) / to_.line; ++line)
                lines_.push_back(line);
        }
        keep_different(lines_);
        count.bytes += bytes_.size();
        keep_different(bytes_);
        count.lines += lines_.size();
        count.least_lines += (bytes_.size() + to_.line - 1) / to_.line;
        for (const uint64_t line : lines_) touch(*w.block, line, access.write);
    }

    void touch(const Block& block, uint64_t line, bool write) {
        const uint64_t number = block.id[0] + uint64_t{block.id[1]} * launch_.grid[0];
        if (number != block_) {
            touched_[0].clear();
            touched_[1].clear();
            block_ = number;
        }
        if (!touched_[write].insert(line).second) return;
        const uint64_t begin = line * to_.line;
        for (uint32_t r = 0; r < launch_.range_count; ++r)
            if (launch_.ranges[r].begin < begin + to_.line && launch_.ranges[r].end > begin) {
                ++to_.lines[2 * r + write];
                return;
            }
    }

    void see_shared(Wave& w, const Instruction& i, const Access& access, uint64_t exec, Count& count) {
        const unsigned width = access.bytes <= 4 ? 0 : access.bytes == 8 ? 1 : 2;
        const uint8_t* const phase_of = to_.phases + (width * 2 + access.write) * kMost;
        for (unsigned n = 0; n < access.addresses; ++n) {
            for (auto& words : words_) words.clear();
            for (unsigned l = 0; l < w.lanes; ++l) {
                if (!(exec >> l & 1)) continue;
                const uint32_t address = access.addresses == 1 ? own::shared_address(w, i, l)
                                                               : own::shared_address(w, i, l, n, access.step);
                count.bytes += access.bytes;
                for (uint32_t byte = 0; byte < access.bytes; byte += 4) words_[phase_of[l]].push_back((address + byte) / 4);
            }
            for (auto& words : words_) {
                if (words.empty()) continue;
                count.cycles += busiest_bank(words);
                ++count.least_cycles;
            }
        }
    }

    // Words, not accesses: lanes that want the same one get it together.
    uint32_t busiest_bank(std::vector<uint64_t>& words) const {
        keep_different(words);
        std::vector<uint32_t> banks(to_.banks, 0);
        for (const uint64_t word : words) ++banks[word % to_.banks];
        return *std::max_element(banks.begin(), banks.end());
    }

    static void keep_different(std::vector<uint64_t>& values) {
        std::sort(values.begin(), values.end());
        values.erase(std::unique(values.begin(), values.end()), values.end());
    }

    const Counting& to_;
    const Launch& launch_;
    uint64_t block_ = ~0ull;
    std::unordered_set<uint64_t> touched_[2];
    std::vector<uint64_t> lines_, bytes_, words_[kMost];
};

}  // namespace emulator
