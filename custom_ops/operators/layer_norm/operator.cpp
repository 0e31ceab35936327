// ONNX's LayerNormalization. Inputs: X, Scale, B (optional). Outputs: Y; Mean and InvStdDev are not computed.
// Attributes: axis (-1), epsilon (1e-5). Scale and B have the shape of X from the axis on.
#include "cpu/normalize.h"
#include "geometry.h"
#include "rows/operator.h"

namespace sdort {
namespace {

enum { kX, kScale, kB };
enum { kY, kMean, kInvStdDev };
constexpr auto kFloat = ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT;

struct LayerNorm {
    using Problem = layer_norm::Problem;

    explicit LayerNorm(const Node& node) : axis(node.integer("axis", -1)), epsilon(node.real("epsilon", 1e-5f)) {
        require(!node.has_output(kMean) && !node.has_output(kInvStdDev), "the outputs Mean and InvStdDev are not computed");
    }

    Problem problem(Context& context, Dtype) const {
        const Input x = context.input(kX), scale = context.input(kScale), b = context.input(kB);
        const int64_t rank = static_cast<int64_t>(x.shape.size()), first = axis < 0 ? axis + rank : axis;
        require(0 <= first && first < rank, "axis " + std::to_string(axis) + " is none of X's, whose shape is " + to_string(x.shape));
        const Shape row(x.shape.begin() + first, x.shape.end());
        const int64_t width = element_count(row);
        require(scale.shape == row, rows::shape_message("Scale", to_string(row), scale));
        require(!b || b.shape == row, rows::shape_message("B", to_string(row), b));
        const int64_t rows = width ? element_count(x.shape) / width : 0;
        return {{x.data, scale.data, b.data, context.output(kY, x.shape)}, rows, width, epsilon};
    }

    template <class T>
    SDORT_CPU_INLINE static void rows(const Problem& p, int64_t first, int64_t count) {
        cpu::Normalizer<T> normalize(p);
        for (int64_t row = first; row < first + count; ++row) {
            const T* x = static_cast<const T*>(p.x) + row * p.width;
            normalize(cpu::widened(x, normalize.room.data(), p.width), static_cast<T*>(p.y) + row * p.width);
        }
    }

    int64_t axis;
    float epsilon;
};

SDORT_ROW_OPERATOR(LayerNorm, .domain = kOnnx, .name = "LayerNormalization", .inputs = {{"X"}, {"Scale"}, {"B", true}},
                   .outputs = {{"Y"}, {"Mean", true, kFloat}, {"InvStdDev", true, kFloat}})

}  // namespace
}  // namespace sdort
