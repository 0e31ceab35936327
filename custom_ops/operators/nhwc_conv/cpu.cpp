#include "cpu.h"

#include <algorithm>

#include "cpu/math.h"
#include "cpu/vector.h"

namespace sdort::cpu {
namespace {

// Tiles whose source and target lines stay in the first-level cache while they are turned.
constexpr int64_t kTile = 32;

template <class From, class To>
SDORT_CPU_INLINE void turn(const From* source, To* target, int64_t rows, int64_t columns) {
    for (int64_t top = 0; top < rows; top += kTile)
        for (int64_t left = 0; left < columns; left += kTile) {
            const int64_t bottom = std::min(rows, top + kTile), right = std::min(columns, left + kTile);
            for (int64_t column = left; column < right; ++column)
                for (int64_t row = top; row < bottom; ++row)
                    target[column * rows + row] = static_cast<To>(source[row * columns + column]);
        }
}

SDORT_CPU_CLONES void widen(const _Float16* source, float* target, int64_t rows, int64_t columns) {
    turn(source, target, rows, columns);
}
SDORT_CPU_CLONES void narrow(const float* source, _Float16* target, int64_t rows, int64_t columns) {
    turn(source, target, rows, columns);
}
SDORT_CPU_CLONES void move(const float* source, float* target, int64_t rows, int64_t columns) {
    turn(source, target, rows, columns);
}

}  // namespace

void transpose_to_float(const void* source, Dtype dtype, float* target, int64_t rows, int64_t columns) {
    if (dtype == Dtype::kFloat16) return widen(static_cast<const _Float16*>(source), target, rows, columns);
    move(static_cast<const float*>(source), target, rows, columns);
}

void transpose_from_float(const float* source, void* target, Dtype dtype, int64_t rows, int64_t columns) {
    if (dtype == Dtype::kFloat16) return narrow(source, static_cast<_Float16*>(target), rows, columns);
    move(source, static_cast<float*>(target), rows, columns);
}

}  // namespace sdort::cpu
