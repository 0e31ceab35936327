// The scheduler behind simulated.h, and the C interface through which tests launch a kernel's body.
#include <sys/mman.h>

#include <algorithm>
#include <map>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "device.h"

#if !defined(__x86_64__)
#error "the simulator switches stacks in x86-64 assembly"
#endif

// Saves the callee-saved registers and the stack pointer in *from, then goes on where `to` was saved.
extern "C" void sdort_switch_stack(void** from, void* to);
asm(R"(
.text
.type sdort_switch_stack, @function
sdort_switch_stack:
    pushq %rbp
    pushq %rbx
    pushq %r12
    pushq %r13
    pushq %r14
    pushq %r15
    movq %rsp, (%rdi)
    movq %rsi, %rsp
    popq %r15
    popq %r14
    popq %r13
    popq %r12
    popq %rbx
    popq %rbp
    ret
.size sdort_switch_stack, .-sdort_switch_stack
)");

namespace sdort::simulator {
namespace {

constexpr size_t kStack = 128 * 1024;
constexpr size_t kSlot = 512;  // bytes that a lane may pass in one exchange

struct Kernel {
    int threads;
    size_t args_size;
    size_t args_alignment;
    void (*body)(const void*);
};

std::map<std::string, Kernel>& kernels() {
    static std::map<std::string, Kernel> all;
    return all;
}

enum class State { kReady, kAtBlockBarrier, kAtWaveBarrier, kSpinning, kDone };

struct Wave {
    int lanes = 0;
    int arrived = 0;
    std::vector<unsigned char> slots[2];
};

struct Block;

struct Thread {
    Position position;
    State state = State::kReady;
    Block* block = nullptr;
    Wave* wave = nullptr;
    int exchanges = 0;
    Later later;
    void* stack = nullptr;
    void* saved = nullptr;
};

struct Block {
    std::vector<Thread> threads;
    std::vector<Wave> waves;
    std::map<const void*, std::unique_ptr<unsigned char[]>> shared;  // by their sites
    int arrived = 0;
    int running = 0;
};

// Stacks are reused: a grid of a million threads needs as many as were ever alive at once.
std::vector<void*> free_stacks;

void* take_stack() {
    if (!free_stacks.empty()) {
        void* stack = free_stacks.back();
        free_stacks.pop_back();
        return stack;
    }
    void* stack = mmap(nullptr, kStack, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (stack == MAP_FAILED) throw std::runtime_error("the simulator has no memory for another thread's stack");
    return stack;
}

Thread* current = nullptr;
void* scheduler = nullptr;
const Kernel* kernel = nullptr;
const void* kernel_args = nullptr;
size_t room_bytes = 0;
size_t most_blocks = 0;
uint64_t order = 0;  // see sdort_body_order
void (*redirect)(const char*, const unsigned[2], unsigned, const void*, size_t) = nullptr;  // see sdort_body_redirect

void yield(State state) {
    current->state = state;
    sdort_switch_stack(&current->saved, scheduler);
}

void thread_main() {
    kernel->body(kernel_args);
    yield(State::kDone);
    __builtin_unreachable();
}

void start(Thread& thread) {
    thread.stack = take_stack();
    auto* top = reinterpret_cast<void**>(static_cast<unsigned char*>(thread.stack) + kStack);
    // As if called: a return address that is never used keeps the stack aligned as the ABI wants it at entry.
    *--top = nullptr;
    *--top = reinterpret_cast<void*>(&thread_main);
    for (int i = 0; i < 6; ++i) *--top = nullptr;
    thread.saved = top;
}

std::unique_ptr<Block> make_block(int index, int index_y, int threads) {
    auto block = std::make_unique<Block>();
    block->threads.resize(threads);
    block->waves.resize((threads + kWave - 1) / kWave);
    block->running = threads;
    for (int i = 0; i < threads; ++i) {
        Thread& thread = block->threads[i];
        thread.position = {i, {index, index_y}};
        thread.block = block.get();
        thread.wave = &block->waves[i / kWave];
        thread.wave->lanes += 1;
        start(thread);
    }
    return block;
}

// Lets every thread of a wave that can go on do so. Returns whether anything but spinning happened.
bool step(Block& block, size_t wave) {
    bool progress = false;
    const size_t end = std::min(block.threads.size(), (wave + 1) * kWave);
    for (size_t i = wave * kWave; i < end; ++i) {
        Thread& thread = block.threads[i];
        if (thread.state != State::kReady && thread.state != State::kSpinning) continue;
        const bool spinning = thread.state == State::kSpinning;
        current = &thread;
        sdort_switch_stack(&scheduler, thread.saved);
        progress |= !(spinning && thread.state == State::kSpinning);
        if (thread.state == State::kDone) {
            free_stacks.push_back(thread.stack);
            thread.stack = nullptr;
            block.running -= 1;
        }
    }
    return progress;
}

// Lets every wave go on, by a step or as far as it gets. Returns whether anything but spinning happened.
bool pass(Block& block) {
    const size_t waves = block.waves.size();
    bool progress = false;
    if (order == 0) {
        for (size_t wave = 0; wave < waves; ++wave) progress |= step(block, wave);
        return progress;
    }
    order = order * 6364136223846793005u + 1442695040888963407u;  // Knuth's MMIX; its high bits are random
    const size_t first = (order >> 33) % waves, stride = order >> 63 ? 1 : waves - 1;
    for (size_t i = 0; i < waves; ++i)
        while (step(block, (first + i * stride) % waves)) progress = true;
    return progress;
}

void run(const unsigned grid[2]) {
    // A further block starts only when those that run can do nothing but wait: any order must give the same result,
    // and few blocks at a time keep the stacks in the cache.
    std::vector<std::unique_ptr<Block>> active;
    const uint64_t total = static_cast<uint64_t>(grid[0]) * grid[1];
    uint64_t next = 0;
    while (next < total || !active.empty()) {
        bool progress = false;
        for (auto& block : active) progress |= pass(*block);
        std::erase_if(active, [](const auto& block) { return block->running == 0; });
        if (progress) continue;
        if (next == total && !active.empty())
            throw std::runtime_error("deadlock: threads wait for a barrier, a shuffle or a flag that never comes");
        if (next < total) {
            active.push_back(make_block(next % grid[0], next / grid[0], kernel->threads));
            next += 1;
            most_blocks = std::max(most_blocks, active.size());
        }
    }
}

}  // namespace

Registration::Registration(const char* name, int threads, size_t args_size, size_t args_alignment,
                           void (*body)(const void*)) {
    kernels()[name] = {threads, args_size, args_alignment, body};
}

const Position& position() { return current->position; }

void block_barrier() {
    Block& block = *current->block;
    if (++block.arrived < static_cast<int>(block.threads.size())) {
        yield(State::kAtBlockBarrier);
        return;
    }
    block.arrived = 0;
    for (Thread& thread : block.threads)
        if (thread.state == State::kAtBlockBarrier) thread.state = State::kReady;
}

void pause() { yield(State::kSpinning); }

void* shared_memory(const void* site, size_t size, size_t alignment) {
    auto& memory = current->block->shared[site];
    if (!memory) {
        memory = std::make_unique<unsigned char[]>(size + alignment);
        memset(memory.get(), 0xff, size + alignment);
    }
    const auto address = reinterpret_cast<uintptr_t>(memory.get());
    return reinterpret_cast<void*>((address + alignment - 1) / alignment * alignment);
}

char* room() {
    static const char site = 0;
    return static_cast<char*>(shared_memory(&site, room_bytes, 1024));
}

Later& later() { return current->later; }

const void* exchange(const void* mine, size_t size) {
    Wave& wave = *current->wave;
    // Two buffers in turn: a lane that is ahead writes into the one that nobody reads any more.
    std::vector<unsigned char>& slots = wave.slots[current->exchanges++ % 2];
    if (slots.empty()) slots.resize(kSlot * kWave);
    memcpy(slots.data() + size * (current->position.thread % kWave), mine, size);
    if (++wave.arrived < wave.lanes) {
        yield(State::kAtWaveBarrier);
    } else {
        wave.arrived = 0;
        for (Thread& thread : current->block->threads)
            if (thread.wave == &wave && thread.state == State::kAtWaveBarrier) thread.state = State::kReady;
    }
    return slots.data();
}

}  // namespace sdort::simulator

namespace {
std::string last_error;
}

// Runs a kernel's body over the grid. 0, or 1 with the reason in sdort_body_error().
extern "C" int sdort_body_launch(const char* name, const unsigned grid[3], const unsigned block[3], unsigned lds_bytes,
                                 const void* args, size_t args_size) {
    using namespace sdort::simulator;
    try {
        const auto found = kernels().find(name);
        if (found == kernels().end()) throw std::runtime_error(std::string("no kernel is named ") + name);
        const Kernel& entry = found->second;
        if (block[0] != static_cast<unsigned>(entry.threads) || block[1] != 1 || block[2] != 1)
            throw std::runtime_error(std::string(name) + " takes blocks of " + std::to_string(entry.threads) +
                                     " threads, not " + std::to_string(block[0]));
        if (grid[2] != 1) throw std::runtime_error("kernels use two grid dimensions");
        if (args_size != entry.args_size)
            throw std::runtime_error(std::string(name) + " takes " + std::to_string(entry.args_size) +
                                     " bytes of arguments, not " + std::to_string(args_size));
        if (redirect) {
            redirect(name, grid, block[0], args, args_size);
            return 0;
        }
        // The caller's buffer may lie anywhere.
        std::vector<unsigned char> copy(args_size + entry.args_alignment);
        auto address = reinterpret_cast<uintptr_t>(copy.data());
        address = (address + entry.args_alignment - 1) / entry.args_alignment * entry.args_alignment;
        memcpy(reinterpret_cast<void*>(address), args, args_size);
        kernel = &entry;
        room_bytes = lds_bytes;
        kernel_args = reinterpret_cast<const void*>(address);
        run(grid);
        return 0;
    } catch (const std::exception& error) {
        last_error = error.what();
        return 1;
    }
}

extern "C" const char* sdort_body_error() { return last_error.c_str(); }

// 0: the waves of a block go on in step, the first one first. Else each goes as far as it gets before another does, from a
// wave and in a direction that this number decides: what lies between two barriers must give the same result in any order.
extern "C" void sdort_body_order(uint64_t seed) { sdort::simulator::order = seed; }

// Launches go to `callback` instead, as name, grid, threads of a block, and arguments that are valid until it returns: so
// that what a geometry made can be run as machine code. Null: the bodies run again.
extern "C" void sdort_body_redirect(void (*callback)(const char*, const unsigned[2], unsigned, const void*, size_t)) {
    sdort::simulator::redirect = callback;
}

// Blocks that had to be on the device at a time, started in order: the most of any launch since this was last asked.
extern "C" size_t sdort_body_most_blocks() { return std::exchange(sdort::simulator::most_blocks, 0); }

// The kernels' names, one a line.
extern "C" const char* sdort_body_names() {
    static std::string names;
    names.clear();
    for (const auto& [name, kernel] : sdort::simulator::kernels()) names += name + "\n";
    return names.c_str();
}
