// Products of 16 x 16 tiles by matrix instructions, fp16 in and float32 sums, one interface for four machines:
//
//   sums[row][column] += sum over k of rows[row][k] * columns[k][column]
//
// A wave holds the three in fragments, whose layout over lanes and registers is the machine's own. It is chosen so that
// sums are columns of the next product without leaving the registers (as_columns): S^T = K Q^T has keys as rows and
// queries as columns, and O^T = V^T P^T contracts over the keys. On mfma, wmma on gfx12 and mma.sync a lane's sums are its
// columns' values; on gfx11, where a lane needs the whole column, the wave's halves swap theirs.
//
//   kSlots                        columns of a tile that one lane has sums of: its slots
//   kElements                     sums of a tile that one lane has
//   slot_of(i), row_of(i)         of the lane's sum i: its slot and its row
//   column_of(slot)
//   over_column(value, combine)   `combine` of the values of all lanes that share a slot's column
//   load_rows<Depth>(at)          at(row, eight) is the address of rows[row][8 * eight] to [8 * eight + 7], 16-byte aligned
//   kHalves, load_rows<Depth, true>(at)
//                                 whether lanes read 8 bytes of a unit of 16, and how, where those halves are exchanged in rows
//                                 8 to 15 of the tile: all 16 rows of a column together then meet different banks
//   load_columns<Depth>(at)       at(column, eight): the same of columns[8 * eight][column] and the seven below
//   kTransposes, load_rows_transposed<Height>(at)
//                                 whether, and how, rows come from memory where a row's neighbours are other rows:
//                                 at(k, eight) is the address of rows[8 * eight][k] to rows[8 * eight + 7][k]
//   kSubnormals                   whether operands below 2^-14, float16's subnormals, are read as what they are, not as zero
//   kAhead                        fragments that should be loaded ahead of their products
//   multiply<Depth, Height>(rows, columns, sums)
//   as_columns(sums)              rounded to fp16
//   as_columns(rows)              the transposed matrix as the other operand
//   scale(columns, factors)       times factors[slot], a pair of one float16
//   each_run<Height>(sums, put)   put(slot, row, run): kRun sums of neighbouring rows, rounded to fp16
//
// Depth 8 means that rows and columns have but 8 values, Height 8 that there are but 8 rows: mma.sync then does half the
// work. Every lane of the wave takes part in everything.
#pragma once

#include "device.h"

#if defined(SDORT_SIMULATED)
#include "matrix_simulated.h"
#endif

#if defined(SDORT_MATRIX_MFMA)
#include "matrix_mfma.h"
#elif defined(SDORT_MATRIX_WMMA_GFX11)
#include "matrix_wmma_gfx11.h"
#elif defined(SDORT_MATRIX_WMMA_GFX12)
#include "matrix_wmma_gfx12.h"
#elif defined(SDORT_MATRIX_MMA_SYNC)
#include "matrix_mma_sync.h"
#endif

#if !defined(SDORT_MATRIX_MMA_SYNC)
namespace sdort::matrix {
template <int Height = 16, class At>
SDORT_INLINE Rows load_rows_transposed(At at) = delete;
}  // namespace sdort::matrix
#endif
