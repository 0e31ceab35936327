// com.microsoft::SkipLayerNormalization. Inputs: X (N, S, C), skip (N, S, C), (1, S, C) or (S, C), gamma (C), beta (C, optional),
// bias (C, optional). Outputs: Y, mean and inv_std_var (not computed), S = X + skip + bias (optional).
#include <algorithm>

#include "cpu/rows.h"
#include "kernels/skip_layer_norm_geometry.h"
#include "operator.h"

namespace sdort {
namespace {

enum { kX, kSkip, kGamma, kBeta, kBias };
enum { kY, kMean, kInvStdVar, kSum };

float epsilon_of(const Node& node) {
    require(!node.has_output(kMean) && !node.has_output(kInvStdVar), "the outputs mean and inv_std_var are not computed");
    return node.real("epsilon", 1e-5f);
}

void require_vector(const Input& input, int64_t width, const char* name) {
    require(!input || input.shape == Shape{width},
            std::string(name) + " must have the shape (" + std::to_string(width) + "), it has " + to_string(input.shape));
}

skip_layer_norm::Problem problem_of(Context& context, float epsilon) {
    const Input x = context.input(kX), skip = context.input(kSkip), gamma = context.input(kGamma);
    const Input beta = context.input(kBeta), bias = context.input(kBias);
    require(!x.shape.empty(), "X must have at least one dimension");
    const int64_t width = x.shape.back();
    require_vector(gamma, width, "gamma");
    require_vector(beta, width, "beta");
    require_vector(bias, width, "bias");
    Shape tail = skip.shape;
    while (tail.size() > 1 && tail.front() == 1) tail.erase(tail.begin());
    const bool fits = tail.size() <= x.shape.size() && std::equal(tail.rbegin(), tail.rend(), x.shape.rbegin()) &&
                      !tail.empty() && tail.back() == width;
    require(fits, "skip must have X's shape " + to_string(x.shape) + " or its last dimensions, it has " + to_string(skip.shape));
    const int64_t rows = width ? element_count(x.shape) / width : 0;
    const int64_t skip_rows = width ? element_count(skip.shape) / width : 0;
    void* y = context.output(kY, x.shape);
    void* sum = context.output(kSum, x.shape);
    return {x.data, skip.data, gamma.data, beta.data, bias.data, y, sum, rows, skip_rows, width, epsilon};
}

class OnGpu : public GpuKernel {
public:
    OnGpu(const Node& node, Dtype dtype, Vendor vendor)
        : GpuKernel(node, vendor), dtype_(dtype), epsilon_(epsilon_of(node)) {}
    void compute(Context& context) override {
        const auto problem = problem_of(context, epsilon_);
        if (problem.rows == 0) return;
        const Device& device = gpu_.device();
        const std::string key = std::string("skip_layer_norm ") + suffix(dtype_) + " rows=" + std::to_string(problem.rows) +
                                " width=" + std::to_string(problem.width);
        run(context, key, skip_layer_norm::variants(problem, dtype_, device), [&](const std::string& variant) {
            return std::vector{skip_layer_norm::launch(problem, dtype_, device, variant)};
        });
    }

private:
    Dtype dtype_;
    float epsilon_;
};

class OnCpu : public Kernel {
public:
    OnCpu(const Node& node, Dtype dtype) : dtype_(dtype), epsilon_(epsilon_of(node)) {}
    void compute(Context& context) override {
        const auto p = problem_of(context, epsilon_);
        const cpu::SkipLayerNorm args{p.x, p.skip, p.skip_rows, p.gamma, p.beta, p.bias, p.y, p.sum, p.width, epsilon_};
        const int64_t step = cpu::rows_per_task(p.width);
        context.parallel_for(ceil_div(p.rows, step), [&](size_t task) {
            const int64_t first = static_cast<int64_t>(task) * step;
            cpu::skip_layer_norm(args, dtype_, first, std::min(step, p.rows - first));
        });
    }

private:
    Dtype dtype_;
    float epsilon_;
};

constexpr auto kFloat = ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT;

}  // namespace

extern const Operator kSkipLayerNorm{
    .domain = kMicrosoft,
    .name = "SkipLayerNormalization",
    .inputs = {{"input"}, {"skip"}, {"gamma"}, {"beta", true}, {"bias", true}},
    .outputs = {{"output"}, {"mean", true, kFloat}, {"inv_std_var", true, kFloat}, {"input_skip_bias_sum", true}},
    .make_cpu = [](const Node& node, Dtype dtype) -> std::unique_ptr<Kernel> { return std::make_unique<OnCpu>(node, dtype); },
    .make_gpu = [](const Node& node, Dtype dtype, Vendor vendor) -> std::unique_ptr<Kernel> {
        return std::make_unique<OnGpu>(node, dtype, vendor);
    },
    .slower_on_cuda = true,  // 0.89 to 0.99 of the speed of ONNX Runtime's on an H100
};

}  // namespace sdort
