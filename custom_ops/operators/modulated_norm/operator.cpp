// sdort::ModulatedLayerNormalization. Inputs: X (B, S, C), scale and shift (B, 1, C). Output: Y, of X's shape. Attribute:
// epsilon (1e-6).
// sdort::TwiceModulatedLayerNormalization. Inputs: X, scale, shift, scale2, shift2. Outputs: Y, Y2.
// sdort::GatedModulatedLayerNormalization. Inputs: X, branch (B, S, C), bias (C), gate (B, 1, C), scale, shift. Outputs: Y,
// sum = X + gate * (branch + bias).
// sdort::GatedTwiceModulatedLayerNormalization. Inputs: X, branch, bias, gate, scale, shift, scale2, shift2. Outputs: Y, sum, Y2.
// sdort::ModulatedRMSNormalization. Inputs: X, weight (C), scale. Output: Y. Attribute: epsilon (1e-5).
// sdort::GatedModulatedRMSNormalization. Inputs: X, branch, factor (C), gate, weight, scale. Outputs: Y, sum. Attributes: epsilon,
// branch_epsilon (1e-5).
#include "cpu/normalize.h"
#include "geometry.h"
#include "rows/operator.h"

namespace sdort {
namespace {

struct Modulated {
    using Problem = modulated_norm::Problem;
    Modulated(const Node& node, float default_epsilon)
        : epsilon(node.real("epsilon", default_epsilon)), branch_epsilon(node.real("branch_epsilon", 1e-5f)) {}

    // Checks all inputs; the outputs of `p` are made by who has them.
    static void fill(Problem& p, const Input& x) {
        require(x.shape.size() == 3, rows::shape_message("X", "(B, S, C)", x));
        p.x = x.data;
        p.rows = x.shape[0] * x.shape[1];
        p.image_rows = x.shape[1];
        p.width = x.shape[2];
    }
    static const void* of_image(const Input& x, const Input& input, const char* name) {
        const Shape shape{x.shape[0], 1, x.shape[2]};
        require(input.shape == shape, rows::shape_message(name, to_string(shape), input));
        return input.data;
    }
    static const void* of_all(const Input& x, const Input& input, const char* name) {
        rows::require_vector(input, x.shape[2], name);
        return input.data;
    }
    static const void* of_rows(const Input& x, const Input& input, const char* name) {
        require(input.shape == x.shape, rows::shape_message(name, to_string(x.shape), input));
        return input.data;
    }

    Problem started(const Input& x, bool rms) const {
        Problem p{};
        fill(p, x);
        p.rms = rms;
        p.epsilon = epsilon;
        p.branch_epsilon = branch_epsilon;
        return p;
    }

    template <class T>
    SDORT_CPU_INLINE static void rows(const Problem& p, int64_t first, int64_t count) {
        const int64_t width = p.width;
        const float size = static_cast<float>(width);
        std::vector<float> values(width), branch(width), gate(width), bias(width), factor(width), weight(width, 1.0f), scale(width),
            shift(width), out(width);
        if (p.bias) cpu::widen(static_cast<const T*>(p.bias), bias.data(), width);
        if (p.factor) cpu::widen(static_cast<const T*>(p.factor), factor.data(), width);
        if (p.weight) cpu::widen(static_cast<const T*>(p.weight), weight.data(), width);
        const auto modulate = [&](const void* by, const void* moved, void* y, int64_t row) {
            const int64_t image = row / p.image_rows * width;
            cpu::widen(static_cast<const T*>(by) + image, scale.data(), width);
            if (moved) cpu::widen(static_cast<const T*>(moved) + image, shift.data(), width);
            for (int64_t i = 0; i < width; ++i) out[i] = values[i] * scale[i] + shift[i];
            cpu::narrow(out.data(), static_cast<T*>(y) + row * width, width);
        };
        for (int64_t row = first; row < first + count; ++row) {
            cpu::widen(static_cast<const T*>(p.x) + row * width, values.data(), width);
            if (p.branch) {
                cpu::widen(static_cast<const T*>(p.branch) + row * width, branch.data(), width);
                cpu::widen(static_cast<const T*>(p.gate) + row / p.image_rows * width, gate.data(), width);
                for (int64_t i = 0; i < width; ++i) branch[i] += bias[i];
                if (p.factor) {
                    const float squares = cpu::sum(width, [&](int64_t i) { return branch[i] * branch[i]; });
                    const float root = 1.0f / std::sqrt(squares / size + p.branch_epsilon);
                    for (int64_t i = 0; i < width; ++i) branch[i] *= root * factor[i];
                }
                for (int64_t i = 0; i < width; ++i) values[i] += gate[i] * branch[i];
                if (p.sum) cpu::narrow(values.data(), static_cast<T*>(p.sum) + row * width, width);
            }
            const float mean = p.rms ? 0.0f : cpu::sum(width, [&](int64_t i) { return values[i]; }) / size;
            const float squares = cpu::sum(width, [&](int64_t i) { return (values[i] - mean) * (values[i] - mean); });
            const float root = 1.0f / std::sqrt(squares / size + p.epsilon);
            for (int64_t i = 0; i < width; ++i) values[i] = (values[i] - mean) * root * weight[i];
            modulate(p.scale, p.shift, p.y, row);
            if (p.y2) modulate(p.scale2, p.shift2, p.y2, row);
        }
    }

    float epsilon, branch_epsilon;
};

struct ModulatedLayerNorm : Modulated {
    explicit ModulatedLayerNorm(const Node& node) : Modulated(node, 1e-6f) {}

    Problem problem(Context& context, Dtype) const { return modulated(context, context.input(0), 1); }

    // Scale and shift are inputs `from` and the next.
    Problem modulated(Context& context, const Input& x, int from) const {
        Problem p = started(x, false);
        p.scale = of_image(x, context.input(from), "scale");
        p.shift = of_image(x, context.input(from + 1), "shift");
        p.y = context.output(0, x.shape);
        return p;
    }
    void twice(Context& context, Problem& p, const Input& x, int from, int output) const {
        p.scale2 = of_image(x, context.input(from), "scale2");
        p.shift2 = of_image(x, context.input(from + 1), "shift2");
        p.y2 = context.output(output, x.shape);
    }
    void gated(Context& context, Problem& p, const Input& x) const {
        p.branch = of_rows(x, context.input(1), "branch");
        p.bias = of_all(x, context.input(2), "bias");
        p.gate = of_image(x, context.input(3), "gate");
        p.sum = context.output(1, x.shape);
    }
};

struct TwiceModulatedLayerNorm : ModulatedLayerNorm {
    using ModulatedLayerNorm::ModulatedLayerNorm;
    Problem problem(Context& context, Dtype) const {
        const Input x = context.input(0);
        Problem p = modulated(context, x, 1);
        twice(context, p, x, 3, 1);
        return p;
    }
};

struct GatedModulatedLayerNorm : ModulatedLayerNorm {
    using ModulatedLayerNorm::ModulatedLayerNorm;
    Problem problem(Context& context, Dtype) const {
        const Input x = context.input(0);
        Problem p = modulated(context, x, 4);
        gated(context, p, x);
        return p;
    }
};

struct GatedTwiceModulatedLayerNorm : ModulatedLayerNorm {
    using ModulatedLayerNorm::ModulatedLayerNorm;
    Problem problem(Context& context, Dtype) const {
        const Input x = context.input(0);
        Problem p = modulated(context, x, 4);
        gated(context, p, x);
        twice(context, p, x, 6, 2);
        return p;
    }
};

struct ModulatedRMSNorm : Modulated {
    explicit ModulatedRMSNorm(const Node& node) : Modulated(node, 1e-5f) {}

    Problem problem(Context& context, Dtype) const { return modulated(context, context.input(0), 1); }

    // Weight and scale are inputs `from` and the next.
    Problem modulated(Context& context, const Input& x, int from) const {
        Problem p = started(x, true);
        p.weight = of_all(x, context.input(from), "weight");
        p.scale = of_image(x, context.input(from + 1), "scale");
        p.y = context.output(0, x.shape);
        return p;
    }
};

struct GatedModulatedRMSNorm : ModulatedRMSNorm {
    using ModulatedRMSNorm::ModulatedRMSNorm;
    Problem problem(Context& context, Dtype) const {
        const Input x = context.input(0);
        Problem p = modulated(context, x, 4);
        p.branch = of_rows(x, context.input(1), "branch");
        p.factor = of_all(x, context.input(2), "factor");
        p.gate = of_image(x, context.input(3), "gate");
        p.sum = context.output(1, x.shape);
        return p;
    }
};

SDORT_ROW_OPERATOR(GatedModulatedLayerNorm, .domain = kSdort, .name = "GatedModulatedLayerNormalization",
                   .inputs = {{"X"}, {"branch"}, {"bias"}, {"gate"}, {"scale"}, {"shift"}}, .outputs = {{"Y"}, {"sum", true}})
SDORT_ROW_OPERATOR(GatedModulatedRMSNorm, .domain = kSdort, .name = "GatedModulatedRMSNormalization",
                   .inputs = {{"X"}, {"branch"}, {"factor"}, {"gate"}, {"weight"}, {"scale"}}, .outputs = {{"Y"}, {"sum", true}})
SDORT_ROW_OPERATOR(GatedTwiceModulatedLayerNorm, .domain = kSdort, .name = "GatedTwiceModulatedLayerNormalization",
                   .inputs = {{"X"}, {"branch"}, {"bias"}, {"gate"}, {"scale"}, {"shift"}, {"scale2"}, {"shift2"}},
                   .outputs = {{"Y"}, {"sum", true}, {"Y2"}})
SDORT_ROW_OPERATOR(ModulatedLayerNorm, .domain = kSdort, .name = "ModulatedLayerNormalization",
                   .inputs = {{"X"}, {"scale"}, {"shift"}}, .outputs = {{"Y"}})
SDORT_ROW_OPERATOR(ModulatedRMSNorm, .domain = kSdort, .name = "ModulatedRMSNormalization",
                   .inputs = {{"X"}, {"weight"}, {"scale"}}, .outputs = {{"Y"}})
SDORT_ROW_OPERATOR(TwiceModulatedLayerNorm, .domain = kSdort, .name = "TwiceModulatedLayerNormalization",
                   .inputs = {{"X"}, {"scale"}, {"shift"}, {"scale2"}, {"shift2"}}, .outputs = {{"Y"}, {"Y2"}})

}  // namespace
}  // namespace sdort
