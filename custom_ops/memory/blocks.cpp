#include "blocks.h"

#include <algorithm>
#include <iterator>

namespace sdort {
namespace {

size_t aligned(size_t bytes) {
    const size_t whole = bytes ? bytes : 1;
    return (whole + Blocks::kAlignment - 1) / Blocks::kAlignment * Blocks::kAlignment;
}

// SplitMix64 (Steele, Lea, Flood, "Fast splittable pseudorandom number generators", 2014) of both numbers.
uint64_t hash(size_t offset, size_t bytes) {
    uint64_t x = (offset / Blocks::kAlignment << 32) + bytes / Blocks::kAlignment + 0x9e3779b97f4a7c15;
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9;
    x = (x ^ x >> 27) * 0x94d049bb133111eb;
    return x ^ x >> 31;
}

}  // namespace

std::optional<size_t> Blocks::take(size_t bytes) {
    const size_t wanted = aligned(bytes);
    const auto gap = std::find_if(gaps_.begin(), gaps_.end(), [&](const auto& entry) { return entry.second >= wanted; });
    if (gap == gaps_.end()) return std::nullopt;
    const auto [offset, room] = *gap;
    gaps_.erase(gap);
    if (room > wanted) gaps_[offset + wanted] = room - wanted;
    blocks_[offset] = wanted;
    state_ ^= hash(offset, wanted);
    taken_ += wanted;
    return offset;
}

size_t Blocks::missing(size_t bytes) const {
    const auto last = gaps_.empty() ? gaps_.end() : std::prev(gaps_.end());
    const bool at_end = last != gaps_.end() && last->first + last->second == size_;
    const size_t wanted = aligned(bytes), room = at_end ? last->second : 0;
    return wanted > room ? wanted - room : 0;
}

void Blocks::grow(size_t bytes) {
    const size_t offset = size_;
    size_ += bytes;
    add_gap(offset, bytes);
}

bool Blocks::give(size_t offset) {
    const auto block = blocks_.find(offset);
    if (block == blocks_.end()) return false;
    const size_t bytes = block->second;
    blocks_.erase(block);
    taken_ -= bytes;
    state_ ^= hash(offset, bytes);
    add_gap(offset, bytes);
    return true;
}

// Joined with the gaps that it touches.
void Blocks::add_gap(size_t offset, size_t bytes) {
    auto next = gaps_.lower_bound(offset);
    if (next != gaps_.end() && offset + bytes == next->first) {
        bytes += next->second;
        next = gaps_.erase(next);
    }
    if (next != gaps_.begin()) {
        if (const auto before = std::prev(next); before->first + before->second == offset) {
            before->second += bytes;
            return;
        }
    }
    gaps_[offset] = bytes;
}

}  // namespace sdort
