// Images between channels-last and channels-first, widened to float32 or rounded back.
#pragma once

#include <cstdint>

#include "driver/launch.h"

namespace sdort::cpu {

// `target`, float32: the transpose of the rows x columns matrix at `source`.
void transpose_to_float(const void* source, Dtype dtype, float* target, int64_t rows, int64_t columns);

// `target`: the transpose of the rows x columns float32 matrix at `source`, rounded to `dtype`.
void transpose_from_float(const float* source, void* target, Dtype dtype, int64_t rows, int64_t columns);

}  // namespace sdort::cpu
