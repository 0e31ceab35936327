// com.microsoft::SkipLayerNormalization. Inputs: X (N, S, C), skip (N, S, C), (1, S, C) or (S, C), gamma (C), beta (C, optional),
// bias (C, optional). Outputs: Y, mean and inv_std_var (not computed), S = X + skip + bias (optional).
// sdort::BiasLayerNormalization. Inputs: X (..., C), gamma (C), beta (C), bias (C). Output: Y, of X + bias.
#include "cpu/normalize.h"
#include "geometry.h"
#include "rows/operator.h"

namespace sdort {
namespace {

enum { kX, kSkip, kGamma, kBeta, kBias };
enum { kY, kMean, kInvStdVar, kSum };
constexpr auto kFloat = ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT;

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
        cpu::Normalizer<T> normalize(p);
        std::vector<float> bias(p.width), room(p.width);
        if (p.bias) cpu::widen(static_cast<const T*>(p.bias), bias.data(), p.width);
        for (int64_t row = first; row < first + count; ++row) {
            float* const values = normalize.room.data();
            const float* const x = cpu::widened(static_cast<const T*>(p.x) + row * p.width, values, p.width);
            const float* const skip = cpu::widened(static_cast<const T*>(p.skip) + row % p.skip_rows * p.width, room.data(), p.width);
            const float* const shift = bias.data();
            for (int64_t i = 0; i < p.width; ++i) values[i] = x[i] + skip[i] + shift[i];
            if (p.sum) cpu::narrow(values, static_cast<T*>(p.sum) + row * p.width, p.width);
            normalize(values, static_cast<T*>(p.y) + row * p.width);
        }
    }

    float epsilon;
};

// A bias is a skip of one row, which all rows of X read.
struct BiasLayerNorm : SkipLayerNorm {
    using SkipLayerNorm::SkipLayerNorm;

    Problem problem(Context& context, Dtype) const {
        const Input x = context.input(0), gamma = context.input(1), beta = context.input(2), bias = context.input(3);
        require(!x.shape.empty(), "X must have at least one dimension");
        const int64_t width = x.shape.back();
        rows::require_vector(gamma, width, "gamma");
        rows::require_vector(beta, width, "beta");
        rows::require_vector(bias, width, "bias");
        const int64_t rows = width ? element_count(x.shape) / width : 0;
        return {{x.data, bias.data, gamma.data, beta.data, nullptr, context.output(0, x.shape), nullptr}, rows, 1, width, epsilon};
    }
};

SDORT_ROW_OPERATOR(BiasLayerNorm, .domain = kSdort, .name = "BiasLayerNormalization",
                   .inputs = {{"X"}, {"gamma"}, {"beta"}, {"bias"}}, .outputs = {{"Y"}})
SDORT_ROW_OPERATOR(SkipLayerNorm, .domain = kMicrosoft, .name = "SkipLayerNormalization",
                   .inputs = {{"input"}, {"skip"}, {"gamma"}, {"beta", true}, {"bias", true}},
                   .outputs = {{"output"}, {"mean", true, kFloat}, {"inv_std_var", true, kFloat}, {"input_skip_bias_sum", true}},
                   .slower_on_cuda = true)  // 0.92 to 1.02 of the speed of ONNX Runtime's on an H100

}  // namespace
}  // namespace sdort
