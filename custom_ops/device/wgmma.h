// Products of a warpgroup (four warps) by wgmma, asynchronous: the operands' tiles lie in shared memory, sums in registers.
// Machine code for sm_90a alone, the architecture-specific sm_90: SDORT_WGMMA says whether it is compiled for.
//
// PTX ISA, "Asynchronous Warpgroup Level Matrix Multiply-Accumulate Instructions". A tile has rows of 128 bytes, whose 16-byte
// units change places by the row's number (the 128-byte swizzle), and begins at a multiple of 1024 bytes:
//
//   place(row, unit)              bytes from the tile's begin to unit `unit` of row `row`
//   address_of(shared)            of what lies in room(), as tiles take it
//   tile(address)                 descriptor of a tile whose rows are an operand's rows or columns, along its contraction: 64
//                                 elements deep; the next 16 of them are kDeeper further
//   tile_across(address, step)    descriptor of tiles whose rows are the contraction, `step` bytes from 64 columns to the next
//                                 64; the next 16 rows are kDeeperAcross further
//   load(tile, row, unit)         Fragment of 16 rows from `row` on of a tile, elements 8 * unit to 8 * unit + 15
//   multiply(d, a, b, add)        d (+)= a b for 64 rows and 2 * (length of d) columns; `a` is a descriptor, or fragments as
//                                 ldmatrix gives them, with `b` across
//   arrive()                      before a warpgroup's first product, and after registers have changed that are its operands
//   commit()                      makes the products since the last time a group
//   wait<Groups>()                until all groups but the last `Groups` are done; till then their operands, registers too, stay
//   publish()                     makes what this thread has written to shared memory visible to products, after a barrier
//
// Of thread t in a warpgroup, with w = t / 32, g = t % 32 / 4 and c = t % 4: d[4 * i + 2 * h + j] is the sum of row
// 16 * w + 8 * h + g and column 8 * i + 2 * c + j.
#pragma once

#include "copy.h"

#if defined(__CUDA_ARCH_FEAT_SM90_ALL) || (defined(SDORT_SIMULATED) && defined(SDORT_MATRIX_MMA_SYNC))
#define SDORT_WGMMA 1

namespace sdort::wgmma {

constexpr uint64_t kDeeper = 32 >> 4, kDeeperAcross = 2048 >> 4;

SDORT_INLINE int place(int row, int unit) { return row * 128 + ((unit ^ (row % 8)) << 4); }

SDORT_INLINE uint64_t descriptor(uint32_t address, uint32_t leading, uint32_t stride) {
    constexpr uint64_t kSwizzle128 = 1ull << 62;
    return (address & 0x3ffff) >> 4 | static_cast<uint64_t>(leading >> 4) << 16 | static_cast<uint64_t>(stride >> 4) << 32 |
           kSwizzle128;
}
SDORT_INLINE uint64_t tile(uint32_t address) { return descriptor(address, 16, 1024); }
SDORT_INLINE uint64_t tile_across(uint32_t address, uint32_t step) { return descriptor(address, step, 1024); }

struct Fragment {
    uint32_t words[4];  // rows g and g + 8 with k = 2 c and 2 c + 1, then the same with k further by 8
};

}  // namespace sdort::wgmma

#if defined(SDORT_SIMULATED)
#include "wgmma_simulated.h"
#else
#include "wgmma_sm90.h"
#endif

#endif
