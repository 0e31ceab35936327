// Which bytes of a growing range are taken: the bookkeeping of a memory pool, without the memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>

namespace sdort {

// Blocks of [0, size()). A request gets the first gap that holds it, and gaps that touch become one. In what a denoiser and a decoder
// ask for, the first gap leaves less unused than the smallest one (324 and 356 MiB for the decoder of 321 at once).
class Blocks {
public:
    static constexpr size_t kAlignment = 512;  // bytes of every block's offset and size

    // The offset of a new block, or nothing where no gap holds it.
    std::optional<size_t> take(size_t bytes);
    // How many bytes the range has to grow by before a block of `bytes` fits at its end.
    size_t missing(size_t bytes) const;
    // Makes the range longer.
    void grow(size_t bytes);
    // Gives a block back. False where no block begins at `offset`.
    bool give(size_t offset);

    size_t size() const { return size_; }
    size_t taken() const { return taken_; }
    bool empty() const { return blocks_.empty(); }
    // Stands for the blocks that are taken: the same for the same ones, another for others.
    uint64_t state() const { return state_; }

private:
    void add_gap(size_t offset, size_t bytes);

    size_t size_ = 0, taken_ = 0;
    uint64_t state_ = 0;  // the exclusive or of a hash of each block
    std::map<size_t, size_t> blocks_;  // offset to bytes
    std::map<size_t, size_t> gaps_;    // the same of what is free
};

}  // namespace sdort
