#include <algorithm>
#include <cmath>
#include <vector>

#include "math.h"
#include "rows.h"
#include "vector.h"

namespace sdort::cpu {
namespace {

template <class T>
SDORT_CPU_INLINE void split_gelu(const BiasSplitGelu& args, int64_t first, int64_t count) {
    const T* bias = static_cast<const T*>(args.bias);
    for (int64_t row = first; row < first + count; ++row) {
        const T* x = static_cast<const T*>(args.x) + row * 2 * args.width;
        T* y = static_cast<T*>(args.y) + row * args.width;
        for (int64_t i = 0; i < args.width; ++i) {
            const float left = static_cast<float>(x[i]) + static_cast<float>(bias[i]);
            const float right = static_cast<float>(x[args.width + i]) + static_cast<float>(bias[args.width + i]);
            y[i] = static_cast<T>(left * gelu(right));
        }
    }
}

// Eight partial sums: vectors without licence to reorder additions, and less rounding than one sum.
template <class Term>
SDORT_CPU_INLINE float sum(int64_t count, Term term) {
    float parts[8] = {};
    int64_t i = 0;
    for (; i + 8 <= count; i += 8)
        for (int k = 0; k < 8; ++k) parts[k] += term(i + k);
    for (; i < count; ++i) parts[i % 8] += term(i);
    return ((parts[0] + parts[4]) + (parts[2] + parts[6])) + ((parts[1] + parts[5]) + (parts[3] + parts[7]));
}

// `values` holds one row: x + skip + bias in float32.
template <class T>
SDORT_CPU_INLINE void normalise(const SkipLayerNorm& args, int64_t row, float* values) {
    const int64_t width = args.width;
    const T* x = static_cast<const T*>(args.x) + row * width;
    const T* skip = static_cast<const T*>(args.skip) + row % args.skip_rows * width;
    const T* bias = static_cast<const T*>(args.bias);
    const T* gamma = static_cast<const T*>(args.gamma);
    const T* beta = static_cast<const T*>(args.beta);
    T* y = static_cast<T*>(args.y) + row * width;
    T* total = static_cast<T*>(args.sum) + (args.sum ? row * width : 0);
    for (int64_t i = 0; i < width; ++i) values[i] = static_cast<float>(x[i]) + static_cast<float>(skip[i]);
    if (bias)
        for (int64_t i = 0; i < width; ++i) values[i] += static_cast<float>(bias[i]);
    if (args.sum)
        for (int64_t i = 0; i < width; ++i) total[i] = static_cast<T>(values[i]);
    const float mean = sum(width, [&](int64_t i) { return values[i]; }) / static_cast<float>(width);
    const float variance =
        sum(width, [&](int64_t i) { return (values[i] - mean) * (values[i] - mean); }) / static_cast<float>(width);
    const float scale = 1.0f / std::sqrt(variance + args.epsilon);
    for (int64_t i = 0; i < width; ++i) {
        const float shift = beta ? static_cast<float>(beta[i]) : 0.0f;
        y[i] = static_cast<T>((values[i] - mean) * scale * static_cast<float>(gamma[i]) + shift);
    }
}

template <class T>
SDORT_CPU_INLINE void normalise_rows(const SkipLayerNorm& args, int64_t first, int64_t count, float* values) {
    for (int64_t row = first; row < first + count; ++row) normalise<T>(args, row, values);
}

SDORT_CPU_CLONES void split_gelu_f32(const BiasSplitGelu& args, int64_t first, int64_t count) {
    split_gelu<float>(args, first, count);
}
SDORT_CPU_CLONES void split_gelu_f16(const BiasSplitGelu& args, int64_t first, int64_t count) {
    split_gelu<_Float16>(args, first, count);
}
SDORT_CPU_CLONES void normalise_f32(const SkipLayerNorm& args, int64_t first, int64_t count, float* values) {
    normalise_rows<float>(args, first, count, values);
}
SDORT_CPU_CLONES void normalise_f16(const SkipLayerNorm& args, int64_t first, int64_t count, float* values) {
    normalise_rows<_Float16>(args, first, count, values);
}

}  // namespace

void bias_split_gelu(const BiasSplitGelu& args, Dtype dtype, int64_t first, int64_t count) {
    (dtype == Dtype::kFloat16 ? split_gelu_f16 : split_gelu_f32)(args, first, count);
}

void skip_layer_norm(const SkipLayerNorm& args, Dtype dtype, int64_t first, int64_t count) {
    std::vector<float> values(args.width);
    (dtype == Dtype::kFloat16 ? normalise_f16 : normalise_f32)(args, first, count, values.data());
}

}  // namespace sdort::cpu
