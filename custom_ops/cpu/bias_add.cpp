#include "bias_add.h"

#include "vector.h"

namespace sdort::cpu {
namespace {

template <class T>
__attribute__((always_inline)) inline void row(const void* x, const void* bias, const void* skip, void* y, size_t row, int64_t channels) {
    const T* from = static_cast<const T*>(x) + row * channels;
    const T* other = static_cast<const T*>(skip) + row * channels;
    T* to = static_cast<T*>(y) + row * channels;
    for (int64_t c = 0; c < channels; ++c)
        to[c] = static_cast<T>(static_cast<float>(from[c]) + static_cast<float>(static_cast<const T*>(bias)[c]) +
                               static_cast<float>(other[c]));
}

}  // namespace

SDORT_CPU_CLONES void bias_add_f32(const void* x, const void* bias, const void* skip, void* y, size_t i, int64_t channels) {
    row<float>(x, bias, skip, y, i, channels);
}

SDORT_CPU_CLONES void bias_add_f16(const void* x, const void* bias, const void* skip, void* y, size_t i, int64_t channels) {
    row<_Float16>(x, bias, skip, y, i, channels);
}

}  // namespace sdort::cpu
