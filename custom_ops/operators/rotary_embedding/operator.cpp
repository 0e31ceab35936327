// sdort::RotaryEmbedding. Inputs: X (B, S, heads * 2C), cos and sin (1 or B, S, C). Output: Y, of X's shape. Attribute:
// interleaved (0): pairs are neighbours, not half a head apart.
// sdort::RMSNormRotaryEmbedding, of each head's root mean square norm. Inputs: X, scale (2C), cos, sin. Attributes: epsilon
// (1e-5), interleaved (0).
#include "cpu/normalize.h"
#include "geometry.h"
#include "rows/operator.h"

namespace sdort {
namespace {

struct RotaryEmbedding {
    using Problem = rotary_embedding::Problem;
    explicit RotaryEmbedding(const Node& node) : interleaved(node.integer("interleaved", 0)) {}

    Problem problem(Context& context, Dtype) const {
        return problem_of(context, context.input(0), {}, context.input(1), context.input(2), 0.0f);
    }

    Problem problem_of(Context& context, const Input& x, const Input& scale, const Input& cos, const Input& sin,
                       float epsilon) const {
        require(x.shape.size() == 3, rows::shape_message("X", "(B, S, heads * 2C)", x));
        const bool fits = cos.shape.size() == 3 && (cos.shape[0] == 1 || cos.shape[0] == x.shape[0]) &&
                          cos.shape[1] == x.shape[1] && cos.shape[2] > 0;
        require(fits, "cos must have the shape (1 or B, S, C) of X's " + to_string(x.shape) + ", it has " + to_string(cos.shape));
        require(sin.shape == cos.shape, rows::shape_message("sin", to_string(cos.shape), sin));
        const int64_t width = cos.shape[2];
        require(x.shape[2] % (2 * width) == 0,
                "X must have heads of twice the " + std::to_string(width) + " elements of cos, its shape is " + to_string(x.shape));
        rows::require_vector(scale, 2 * width, "scale");
        const int64_t heads = x.shape[2] / (2 * width), tokens = x.shape[0] * x.shape[1];
        void* y = context.output(0, x.shape);
        return {{x.data, cos.data, sin.data, scale.data, y}, tokens * heads, heads, cos.shape[0] * cos.shape[1], width, interleaved,
                epsilon};
    }

    template <class T>
    SDORT_CPU_INLINE static void rows(const Problem& p, int64_t first, int64_t count) {
        const int64_t size = 2 * p.width, step = p.interleaved ? 2 : 1, apart = p.interleaved ? 1 : p.width;
        std::vector<float> scale(size, 1.0f), values(size), cos(p.width), sin(p.width);
        if (p.scale) cpu::widen(static_cast<const T*>(p.scale), scale.data(), size);
        for (int64_t row = first; row < first + count; ++row) {
            const int64_t table = row / p.heads % p.table_rows * p.width;
            cpu::widen(static_cast<const T*>(p.x) + row * size, values.data(), size);
            cpu::widen(static_cast<const T*>(p.cos) + table, cos.data(), p.width);
            cpu::widen(static_cast<const T*>(p.sin) + table, sin.data(), p.width);
            if (p.scale) {
                const float mean = cpu::sum(size, [&](int64_t i) { return values[i] * values[i]; }) / static_cast<float>(size);
                const float factor = 1.0f / std::sqrt(mean + p.epsilon);
                for (int64_t i = 0; i < size; ++i) values[i] *= factor * scale[i];
            }
            for (int64_t k = 0; k < p.width; ++k) {
                float &a = values[step * k], &b = values[step * k + apart];
                const float real = a * cos[k] - b * sin[k], imaginary = b * cos[k] + a * sin[k];
                a = real;
                b = imaginary;
            }
            cpu::narrow(values.data(), static_cast<T*>(p.y) + row * size, size);
        }
    }

    int64_t interleaved;
};

struct RMSNormRotaryEmbedding : RotaryEmbedding {
    explicit RMSNormRotaryEmbedding(const Node& node) : RotaryEmbedding(node), epsilon(node.real("epsilon", 1e-5f)) {}

    Problem problem(Context& context, Dtype) const {
        return problem_of(context, context.input(0), context.input(1), context.input(2), context.input(3), epsilon);
    }

    float epsilon;
};

SDORT_ROW_OPERATOR(RMSNormRotaryEmbedding, .domain = kSdort, .name = "RMSNormRotaryEmbedding",
                   .inputs = {{"X"}, {"scale"}, {"cos"}, {"sin"}}, .outputs = {{"Y"}})
SDORT_ROW_OPERATOR(RotaryEmbedding, .domain = kSdort, .name = "RotaryEmbedding", .inputs = {{"X"}, {"cos"}, {"sin"}},
                   .outputs = {{"Y"}})

}  // namespace
}  // namespace sdort
