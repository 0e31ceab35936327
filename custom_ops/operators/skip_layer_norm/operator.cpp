// com.microsoft::SkipLayerNormalization. Inputs: X (N, S, C), skip (N, S, C), (1, S, C) or (S, C), gamma (C), beta (C, optional),
// bias (C, optional). Outputs: Y, mean and inv_std_var (not computed), S = X + skip + bias (optional).
#include <cmath>

#include "geometry.h"
#include "rows/operator.h"

namespace sdort {
namespace {

enum { kX, kSkip, kGamma, kBeta, kBias };
enum { kY, kMean, kInvStdVar, kSum };
constexpr auto kFloat = ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT;

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

struct SkipLayerNorm {
    using Problem = skip_layer_norm::Problem;

    explicit SkipLayerNorm(const Node& node) {
        require(!node.has_output(kMean) && !node.has_output(kInvStdVar), "the outputs mean and inv_std_var are not computed");
        epsilon = node.real("epsilon", 1e-5f);
    }

    Problem problem(Context& context, Dtype) const {
        const Input x = context.input(kX), skip = context.input(kSkip), gamma = context.input(kGamma);
        const Input beta = context.input(kBeta), bias = context.input(kBias);
        require(!x.shape.empty(), "X must have at least one dimension");
        const int64_t width = x.shape.back();
        rows::require_vector(gamma, width, "gamma");
        rows::require_vector(beta, width, "beta");
        rows::require_vector(bias, width, "bias");
        Shape tail = skip.shape;
        while (tail.size() > 1 && tail.front() == 1) tail.erase(tail.begin());
        const bool fits = tail.size() <= x.shape.size() && std::equal(tail.rbegin(), tail.rend(), x.shape.rbegin()) &&
                          !tail.empty() && tail.back() == width;
        require(fits, "skip must have X's shape " + to_string(x.shape) + " or its last dimensions, it has " + to_string(skip.shape));
        const int64_t rows = width ? element_count(x.shape) / width : 0;
        const int64_t skip_rows = width ? element_count(skip.shape) / width : 0;
        void* y = context.output(kY, x.shape);
        void* sum = context.output(kSum, x.shape);
        return {{x.data, skip.data, gamma.data, beta.data, bias.data, y, sum}, rows, skip_rows, width, epsilon};
    }

    template <class T>
    SDORT_CPU_INLINE static void rows(const Problem& p, int64_t first, int64_t count) {
        std::vector<float> values(p.width);
        for (int64_t row = first; row < first + count; ++row) normalise<T>(p, row, values.data());
    }

    // `values` holds one row: x + skip + bias in float32.
    template <class T>
    SDORT_CPU_INLINE static void normalise(const Problem& p, int64_t row, float* values) {
        const int64_t width = p.width;
        const T* x = static_cast<const T*>(p.x) + row * width;
        const T* skip = static_cast<const T*>(p.skip) + row % p.skip_rows * width;
        const T* bias = static_cast<const T*>(p.bias);
        const T* gamma = static_cast<const T*>(p.gamma);
        const T* beta = static_cast<const T*>(p.beta);
        T* y = static_cast<T*>(p.y) + row * width;
        T* total = static_cast<T*>(p.sum) + (p.sum ? row * width : 0);
        for (int64_t i = 0; i < width; ++i) values[i] = static_cast<float>(x[i]) + static_cast<float>(skip[i]);
        if (bias)
            for (int64_t i = 0; i < width; ++i) values[i] += static_cast<float>(bias[i]);
        if (p.sum)
            for (int64_t i = 0; i < width; ++i) total[i] = static_cast<T>(values[i]);
        const float mean = sum(width, [&](int64_t i) { return values[i]; }) / static_cast<float>(width);
        const float variance =
            sum(width, [&](int64_t i) { return (values[i] - mean) * (values[i] - mean); }) / static_cast<float>(width);
        const float scale = 1.0f / std::sqrt(variance + p.epsilon);
        for (int64_t i = 0; i < width; ++i) {
            const float shift = beta ? static_cast<float>(beta[i]) : 0.0f;
            y[i] = static_cast<T>((values[i] - mean) * scale * static_cast<float>(gamma[i]) + shift);
        }
    }

    float epsilon;
};

SDORT_ROW_OPERATOR(SkipLayerNorm, .domain = kMicrosoft, .name = "SkipLayerNormalization",
                   .inputs = {{"input"}, {"skip"}, {"gamma"}, {"beta", true}, {"bias", true}},
                   .outputs = {{"output"}, {"mean", true, kFloat}, {"inv_std_var", true, kFloat}, {"input_skip_bias_sum", true}},
                   .slower_on_cuda = true)  // 0.89 to 0.99 of the speed of ONNX Runtime's on an H100

}  // namespace
}  // namespace sdort
