// One row of BiasAdd on the CPU: y[row] = x[row] + bias + skip[row], `channels` elements, added in float32.
#pragma once

#include <cstddef>
#include <cstdint>

namespace sdort::cpu {

void bias_add_f32(const void* x, const void* bias, const void* skip, void* y, size_t row, int64_t channels);
void bias_add_f16(const void* x, const void* bias, const void* skip, void* y, size_t row, int64_t channels);

}  // namespace sdort::cpu
