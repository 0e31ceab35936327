// com.microsoft::BiasSplitGelu, and sdort::BiasSplitGelu: the same where a graph has a width that ONNX Runtime's kernels
// of that name are not compiled for. Inputs: X (N, S, 2H), bias (2H). Output: Y (N, S, H).
#include "geometry.h"
#include "rows/operator.h"

namespace sdort {
namespace {

struct BiasSplitGelu {
    using Problem = bias_split_gelu::Problem;
    explicit BiasSplitGelu(const Node&) {}

    Problem problem(Context& context, Dtype) const {
        const Input x = context.input(0), bias = context.input(1);
        require(x.shape.size() == 3 && x.shape[2] % 2 == 0, rows::shape_message("X", "(N, S, 2H)", x));
        rows::require_vector(bias, x.shape[2], "bias");
        const int64_t width = x.shape[2] / 2;
        return {{x.data, bias.data, context.output(0, {x.shape[0], x.shape[1], width})}, x.shape[0] * x.shape[1], width};
    }

    template <class T>
    SDORT_CPU_INLINE static void rows(const Problem& p, int64_t first, int64_t count) {
        const T* bias = static_cast<const T*>(p.bias);
        for (int64_t row = first; row < first + count; ++row) {
            const T* x = static_cast<const T*>(p.x) + row * 2 * p.width;
            T* y = static_cast<T*>(p.y) + row * p.width;
            for (int64_t i = 0; i < p.width; ++i) {
                const float left = static_cast<float>(x[i]) + static_cast<float>(bias[i]);
                const float right = static_cast<float>(x[p.width + i]) + static_cast<float>(bias[p.width + i]);
                y[i] = static_cast<T>(left * cpu::gelu(right));
            }
        }
    }
};

SDORT_ROW_OPERATOR(BiasSplitGelu, .domain = kMicrosoft, .name = "BiasSplitGelu", .inputs = {{"X"}, {"bias"}}, .outputs = {{"Y"}})

const Registration kAnyWidth = rows::registration<BiasSplitGelu, BiasSplitGelu_f32, BiasSplitGelu_f16>(
    {.domain = kSdort, .name = "BiasSplitGelu", .inputs = {{"X"}, {"bias"}}, .outputs = {{"Y"}}});

}  // namespace
}  // namespace sdort
