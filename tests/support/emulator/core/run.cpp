// Runs a kernel: all its blocks, their waves interleaved at random. Called by tests/emulator/core.py.
#include <algorithm>
#include <cfenv>

#include "count.h"
#include "table.h"
#include "translated.h"

namespace emulator {
namespace {

const std::vector<Entry>& table() {
    static const std::vector<Entry> all = [] {
        std::vector<Entry> entries{{kOnAll, "", own::missing}};
        entries.insert(entries.end(), std::begin(kOwn), std::end(kOwn));
        entries.insert(entries.end(), std::begin(kTranslated), std::end(kTranslated));
        return entries;
    }();
    return all;
}

void set_up_registers(Wave& w, const Launch& launch) {
    for (auto& word : w.sgpr) word = static_cast<uint32_t>(w.device->random.next());
    w.vgpr.resize(static_cast<size_t>(launch.registers) * w.lanes);
    w.device->random.fill(w.vgpr);
    w.scc = w.device->random.next() & 1;
    const uint32_t first = w.index * w.lanes, lanes = std::min(w.lanes, launch.threads - first);
    w.set_exec(lanes == 64 ? ~0ull : (1ull << lanes) - 1);
    for (uint32_t l = 0; l < w.lanes; ++l) w.vgpr[l] = first + l;  // x in bits 0 to 9; y and z are 0
    w.sgpr[launch.kernarg_register] = static_cast<uint32_t>(launch.kernarg);
    w.sgpr[launch.kernarg_register + 1] = static_cast<uint32_t>(launch.kernarg >> 32);
    if (w.family == kRdna4) {
        w.sgpr[kTtmp9] = w.block->id[0];
        w.sgpr[kTtmp7] = w.block->id[1];
        return;
    }
    uint32_t at = launch.user_registers;
    for (int axis = 0; axis < 3; ++axis)
        if (launch.workgroup_ids >> axis & 1) w.sgpr[at++] = axis < 2 ? w.block->id[axis] : 0;
}

std::unique_ptr<Block> make_block(Device& d, uint32_t number) {
    const Launch& launch = d.launch;
    auto block = std::make_unique<Block>();
    block->id[0] = number % launch.grid[0];
    block->id[1] = number / launch.grid[0];
    block->lds.resize((launch.lds + 3) / 4 + 4);
    d.random.fill(block->lds);
    block->live = (launch.threads + launch.wave - 1) / launch.wave;
    for (uint32_t n = 0; n < block->live; ++n) {
        auto wave = std::make_unique<Wave>();
        wave->device = &d;
        wave->block = block.get();
        wave->index = n;
        wave->lanes = launch.wave;
        wave->family = static_cast<Family>(launch.family);
        set_up_registers(*wave, launch);
        block->waves.push_back(std::move(wave));
    }
    return block;
}

// Both halves of a dual instruction read their sources before either writes.
void run_dual(Wave& w, const Instruction& x, Run run_x, const Instruction& y, Run run_y) {
    uint32_t before[kMost], after[kMost];
    uint32_t* const out = w.row(x.dst, 1);
    std::memcpy(before, out, w.lanes * 4);
    run_x(w, x);
    std::memcpy(after, out, w.lanes * 4);
    std::memcpy(out, before, w.lanes * 4);
    run_y(w, y);
    std::memcpy(out, after, w.lanes * 4);
}

void step(Device& d, Wave& w) {
    if (w.pc >= d.count) throw Fault{"end of the code", "without s_endpgm"};
    const Instruction& i = d.program[w.pc];
    const bool dual = i.flags & kDual;
    w.next = w.pc + (dual ? 2 : 1);
    if (d.counter) d.counter->see(w, i, w.pc);
    if (dual) run_dual(w, i, d.run[w.pc], d.program[w.pc + 1], d.run[w.pc + 1]);
    else d.run[w.pc](w, i);
    w.pc = w.next;
    ++d.executed;
}

class Scheduler {
public:
    Scheduler(Device& device, Wave*& current) : d_(device), current_(current) {}

    void run() {
        const uint32_t blocks = d_.launch.blocks, most = std::min(blocks, d_.launch.resident);
        for (uint32_t next = 0, ended = 0; ended < blocks;) {
            while (next < blocks && resident_.size() < most) start(d_.launch.first + next++);
            run_some();
            const auto gone = std::remove_if(resident_.begin(), resident_.end(), [](const auto& b) { return !b->live; });
            if (gone == resident_.end()) continue;
            ended += static_cast<uint32_t>(resident_.end() - gone);
            resident_.erase(gone, resident_.end());
            collect();
        }
    }

private:
    void start(uint32_t number) {
        resident_.push_back(make_block(d_, number));
        collect();
    }

    void collect() {
        waves_.clear();
        for (const auto& block : resident_)
            for (const auto& wave : block->waves) waves_.push_back(wave.get());
    }

    // One wave, for a time between one and some thousand instructions: so short that two waves change places within any
    // few instructions, and so long that one gets ahead of the others by whole loops.
    void run_some() {
        Wave& w = *pick();
        current_ = &w;
        const uint32_t most = 1u << d_.random.below(13);
        w.yields = false;
        for (uint32_t left = 1 + d_.random.below(most); left && !w.yields; --left) step(d_, w);
        watch();
    }

    Wave* pick() {
        const uint32_t count = static_cast<uint32_t>(waves_.size()), first = d_.random.below(count);
        for (uint32_t n = 0; n < count; ++n) {
            Wave* const w = waves_[(first + n) % count];
            if (w->state == State::kRuns && !(w->idle >= kIdle && w->seen == d_.changes)) return w;
        }
        throw_hang("no wave can go on");
    }

    // Waves that change no memory for so long loop for ever (our kernels' loops store something at their ends).
    void watch() {
        if (d_.changes != changes_) {
            changes_ = d_.changes;
            since_ = d_.executed;
        }
        if (d_.executed - since_ > kEndless) throw_hang("no store in " + std::to_string(kEndless) + " instructions");
    }

    [[noreturn]] void throw_hang(const std::string& why) {
        std::string text = why;
        for (Wave* const w : waves_) {
            if (w->state == State::kEnded) continue;
            char line[96];
            std::snprintf(line, sizeof line, "; block %u,%u wave %u %s at +%#x", w->block->id[0], w->block->id[1], w->index,
                          w->state == State::kWaits ? "waits at a barrier" : w->idle >= kIdle ? "sleeps" : "runs",
                          d_.offsets[std::min(w->pc, d_.count - 1)]);
            text += line;
            current_ = w;
        }
        throw Fault{"hang", text};
    }

    static constexpr uint32_t kIdle = 3;  // sleeps of one wave without a change of memory by anybody
    static constexpr uint64_t kEndless = 100'000'000;
    Device& d_;
    Wave*& current_;
    std::vector<std::unique_ptr<Block>> resident_;
    std::vector<Wave*> waves_;
    uint64_t changes_ = 0, since_ = 0;
};

void lay_out(Device& d) {
    uint32_t offset = 0;
    for (uint32_t n = 0; n < d.count; ++n) {
        d.offsets.push_back(offset);
        d.run.push_back(table()[d.program[n].operation].run);
        offset += d.program[n].bytes;
    }
    d.at.assign(offset / 4, Device::kNowhere);
    for (uint32_t n = 0; n < d.count; ++n)
        if (d.program[n].bytes) d.at[d.offsets[n] / 4] = n;
}

void fill(Report& report, const Device& d, const Wave* w, const Fault& fault) {
    std::snprintf(report.kind, sizeof report.kind, "%s", fault.kind.c_str());
    std::snprintf(report.text, sizeof report.text, "%s", fault.text.c_str());
    report.address = fault.address;
    report.lane = fault.lane;
    if (!w) return;
    report.index = std::min(w->pc, d.count - 1);
    report.offset = d.offsets[report.index];
    report.block[0] = w->block->id[0];
    report.block[1] = w->block->id[1];
    report.wave = w->index;
}

}  // namespace
}  // namespace emulator

using namespace emulator;

extern "C" {

// The name of entry n of the table and, in *families, whose it is; null after the last. Earlier entries win.
const char* emulator_operation(uint32_t n, uint32_t* families) {
    if (n >= table().size()) return nullptr;
    *families = table()[n].families;
    return table()[n].name;
}

// 0, or 1 for a fault that `report` describes. With `counting` it is counted what the blocks do.
int emulate(const Launch* launch, const Instruction* program, uint32_t count, Report* report, const Counting* counting) {
    std::fenv_t environment;
    std::feholdexcept(&environment);
    std::fesetenv(FE_DFL_ENV);  // nearest, with subnormals, whatever the process has set
    Device d{*launch, program, count, {}, {}, {}, {launch->seed}};
    std::unique_ptr<Counter> counter(counting ? new Counter(*counting, *launch) : nullptr);
    d.counter = counter.get();
    Wave* current = nullptr;
    Scheduler scheduler(d, current);  // outlives the fault, which names a wave
    int failed = 0;
    try {
        lay_out(d);
        scheduler.run();
    } catch (const Fault& fault) {
        fill(*report, d, current, fault);
        failed = 1;
    }
    report->instructions = d.executed;
    std::fesetenv(&environment);
    return failed;
}
}
