// Branches, barriers, and what ends or delays a wave.
#pragma once

#include "machine.h"

namespace emulator::own {

inline void branch(Wave& w, const Instruction& i) {
    const Device& d = *w.device;
    const int64_t target = int64_t{d.offsets[w.pc]} + 4 + 4ll * static_cast<int16_t>(i.immediate);
    if (target < 0 || static_cast<uint64_t>(target / 4) >= d.at.size() || d.at[target / 4] == Device::kNowhere)
        throw Fault{"branch out of the kernel", "to byte " + std::to_string(target)};
    w.next = d.at[target / 4];
}
inline void branch_if(bool condition, Wave& w, const Instruction& i) {
    if (condition) branch(w, i);
}
inline void cbranch_scc0(Wave& w, const Instruction& i) { branch_if(!w.scc, w, i); }
inline void cbranch_scc1(Wave& w, const Instruction& i) { branch_if(w.scc, w, i); }
inline void cbranch_vccz(Wave& w, const Instruction& i) { branch_if(w.vcc() == 0, w, i); }
inline void cbranch_vccnz(Wave& w, const Instruction& i) { branch_if(w.vcc() != 0, w, i); }
inline void cbranch_execz(Wave& w, const Instruction& i) { branch_if(w.exec() == 0, w, i); }
inline void cbranch_execnz(Wave& w, const Instruction& i) { branch_if(w.exec() != 0, w, i); }

inline void nothing(Wave&, const Instruction&) {}

// A block whose waves do not all meet at a barrier is wrong even where the hardware lets the others pass.
inline void refuse_partial_barrier(const Block& block) {
    const Wave *ended = nullptr, *waits = nullptr;
    for (const auto& wave : block.waves) {
        if (wave->state == State::kEnded) ended = wave.get();
        if (wave->signalled) waits = wave.get();
    }
    if (ended && waits)
        throw Fault{"barrier", "wave " + std::to_string(waits->index) + " is at one and wave " +
                                   std::to_string(ended->index) + " has ended"};
}

inline void complete_barrier(Block& block) {
    refuse_partial_barrier(block);
    for (const auto& wave : block.waves)
        if (!wave->signalled) return;
    for (const auto& wave : block.waves) {
        wave->signalled = false;
        wave->complete = true;
        if (wave->state == State::kWaits) {
            wave->state = State::kRuns;
            wave->complete = false;
        }
    }
}

// gfx12 signals and waits with two instructions, the others do both with one.
inline void barrier_signal(Wave& w, const Instruction& i) {
    if (static_cast<int32_t>(w.scalar(i.src[0], i)) != -1) throw Fault{"operand not implemented", "a named barrier"};
    if (w.signalled) throw Fault{"barrier", "signalled twice"};
    w.signalled = true;
    complete_barrier(*w.block);
}
inline void wait(Wave& w) {
    w.yields = true;
    if (w.complete) w.complete = false;
    else w.state = State::kWaits;
}
inline void barrier_wait(Wave& w, const Instruction& i) {
    if (static_cast<int16_t>(i.immediate) != -1) throw Fault{"operand not implemented", "a named barrier"};
    if (!w.signalled && !w.complete) throw Fault{"barrier", "waits for what it has not signalled"};
    wait(w);
}
inline void barrier(Wave& w, const Instruction&) {
    w.signalled = true;
    wait(w);
    complete_barrier(*w.block);
}

inline void endpgm(Wave& w, const Instruction&) {
    w.state = State::kEnded;
    w.yields = true;
    --w.block->live;
    refuse_partial_barrier(*w.block);
}

// How a wave waits for another one's store: it lets the others run.
inline void sleep(Wave& w, const Instruction&) {
    w.idle = w.seen == w.device->changes ? w.idle + 1 : 1;
    w.seen = w.device->changes;
    w.yields = true;
}

inline void missing(Wave&, const Instruction&) { throw Fault{"instruction not implemented", ""}; }

}  // namespace emulator::own
