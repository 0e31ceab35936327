// com.microsoft::BiasAdd. Inputs: X (N, S, C), bias (C), skip (N, S, C). Output: Y (N, S, C).
#include "bias_add.h"
#include "rows/operator.h"

namespace sdort {
namespace {

struct BiasAdd {
    using Problem = bias_add::Problem;
    explicit BiasAdd(const Node&) {}

    Problem problem(Context& context, Dtype) const {
        const Input x = context.input(0), bias = context.input(1), skip = context.input(2);
        require(x.shape.size() == 3, rows::shape_message("X", "(N, S, C)", x));
        rows::require_vector(bias, x.shape[2], "bias");
        require(skip.shape == x.shape, "skip must have X's shape " + to_string(x.shape) + ", it has " + to_string(skip.shape));
        return {{x.data, bias.data, skip.data, context.output(0, x.shape)}, x.shape[0] * x.shape[1], x.shape[2]};
    }

    template <class T>
    SDORT_CPU_INLINE static void rows(const Problem& p, int64_t first, int64_t count) {
        const T* bias = static_cast<const T*>(p.bias);
        for (int64_t row = first; row < first + count; ++row) {
            const T* x = static_cast<const T*>(p.x) + row * p.width;
            const T* skip = static_cast<const T*>(p.skip) + row * p.width;
            T* y = static_cast<T*>(p.y) + row * p.width;
            for (int64_t c = 0; c < p.width; ++c)
                y[c] = static_cast<T>(static_cast<float>(x[c]) + static_cast<float>(bias[c]) + static_cast<float>(skip[c]));
        }
    }
};

SDORT_ROW_OPERATOR(BiasAdd, .domain = kMicrosoft, .name = "BiasAdd", .inputs = {{"X"}, {"bias"}, {"skip"}}, .outputs = {{"Y"}})

}  // namespace
}  // namespace sdort
