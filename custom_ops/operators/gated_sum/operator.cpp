// sdort::GatedSum. Inputs: X, branch (B, S, C), bias (C), gate (B, 1, C). Output: Y = X + gate * (branch + bias).
#include "gated_sum.h"
#include "rows/operator.h"

namespace sdort {
namespace {

struct GatedSum {
    using Problem = gated_sum::Problem;
    explicit GatedSum(const Node&) {}

    Problem problem(Context& context, Dtype) const {
        const Input x = context.input(0), branch = context.input(1), bias = context.input(2), gate = context.input(3);
        require(x.shape.size() == 3, rows::shape_message("X", "(B, S, C)", x));
        require(branch.shape == x.shape, rows::shape_message("branch", to_string(x.shape), branch));
        rows::require_vector(bias, x.shape[2], "bias");
        const Shape of_image{x.shape[0], 1, x.shape[2]};
        require(gate.shape == of_image, rows::shape_message("gate", to_string(of_image), gate));
        const int64_t rows = x.shape[0] * x.shape[1];
        require(rows <= UINT32_MAX / 2, "2^31 rows or more are not supported");
        return {{x.data, branch.data, bias.data, gate.data, context.output(0, x.shape)}, rows, x.shape[1], x.shape[2]};
    }

    template <class T>
    SDORT_CPU_INLINE static void rows(const Problem& p, int64_t first, int64_t count) {
        const T* bias = static_cast<const T*>(p.bias);
        for (int64_t row = first; row < first + count; ++row) {
            const T* x = static_cast<const T*>(p.x) + row * p.width;
            const T* branch = static_cast<const T*>(p.branch) + row * p.width;
            const T* gate = static_cast<const T*>(p.gate) + row / p.image_rows * p.width;
            T* y = static_cast<T*>(p.y) + row * p.width;
            for (int64_t c = 0; c < p.width; ++c) {
                const float value = static_cast<float>(branch[c]) + static_cast<float>(bias[c]);
                y[c] = static_cast<T>(static_cast<float>(x[c]) + static_cast<float>(gate[c]) * value);
            }
        }
    }
};

SDORT_ROW_OPERATOR(GatedSum, .domain = kSdort, .name = "GatedSum", .inputs = {{"X"}, {"branch"}, {"bias"}, {"gate"}},
                   .outputs = {{"Y"}})

}  // namespace
}  // namespace sdort
