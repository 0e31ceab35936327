// sdort::SplitSilu and sdort::SplitFastGelu. Input: X (N, S, 2H). Output: Y (N, S, H), the first half times the activation of the
// second.
#include "rows/operator.h"
#include "split_gate.h"

namespace sdort {
namespace {

struct SplitGate {
    using Problem = split_gate::Problem;
    SplitGate(float linear, float cubic) : linear(linear), cubic(cubic) {}

    Problem problem(Context& context, Dtype) const {
        const Input x = context.input(0);
        require(x.shape.size() == 3 && x.shape[2] % 2 == 0, rows::shape_message("X", "(N, S, 2H)", x));
        const int64_t width = x.shape[2] / 2, rows = x.shape[0] * x.shape[1];
        require(rows <= UINT32_MAX / 2, "2^31 rows or more are not supported");
        return {x.data, context.output(0, {x.shape[0], x.shape[1], width}), rows, width, linear, cubic};
    }

    template <class T>
    SDORT_CPU_INLINE static void rows(const Problem& p, int64_t first, int64_t count) {
        const float linear = -split_gate::kLog2E * p.linear, cubic = -split_gate::kLog2E * p.cubic;
        for (int64_t row = first; row < first + count; ++row) {
            const T* x = static_cast<const T*>(p.x) + row * 2 * p.width;
            T* y = static_cast<T*>(p.y) + row * p.width;
            for (int64_t i = 0; i < p.width; ++i) {
                const float left = static_cast<float>(x[i]), right = static_cast<float>(x[p.width + i]);
                const float exponent = right * (cubic * right * right + linear);
                y[i] = static_cast<T>(left * right / (1.0f + cpu::exp2(exponent)));
            }
        }
    }

    float linear, cubic;
};

struct SplitFastGelu : SplitGate {
    explicit SplitFastGelu(const Node&) : SplitGate(1.59576912f, 0.0713548163f) {}
};

struct SplitSilu : SplitGate {
    explicit SplitSilu(const Node&) : SplitGate(1.0f, 0.0f) {}
};

SDORT_ROW_OPERATOR(SplitFastGelu, .domain = kSdort, .name = "SplitFastGelu", .inputs = {{"X"}}, .outputs = {{"Y"}})
SDORT_ROW_OPERATOR(SplitSilu, .domain = kSdort, .name = "SplitSilu", .inputs = {{"X"}}, .outputs = {{"Y"}})

}  // namespace
}  // namespace sdort
