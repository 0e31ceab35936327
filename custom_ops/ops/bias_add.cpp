// com.microsoft::BiasAdd. Inputs: X (N, S, C), bias (C), skip (N, S, C). Output: Y (N, S, C).
#include "kernels/bias_add_geometry.h"
#include "cpu/bias_add.h"
#include "operator.h"

namespace sdort {
namespace {

bias_add::Problem problem_of(Context& context) {
    const Input x = context.input(0), bias = context.input(1), skip = context.input(2);
    require(x.shape.size() == 3, "X must have the shape (N, S, C), it has " + to_string(x.shape));
    require(bias.shape == Shape{x.shape[2]}, "bias must have the shape (" + std::to_string(x.shape[2]) + "), it has " +
                                                 to_string(bias.shape));
    require(skip.shape == x.shape, "skip must have X's shape " + to_string(x.shape) + ", it has " + to_string(skip.shape));
    return {x.data, bias.data, skip.data, context.output(0, x.shape), x.shape[0] * x.shape[1], x.shape[2]};
}

class OnGpu : public GpuKernel {
public:
    OnGpu(const Node& node, Dtype dtype, Vendor vendor) : GpuKernel(node, vendor), dtype_(dtype) {}
    void compute(Context& context) override {
        const auto problem = problem_of(context);
        if (problem.rows * problem.channels == 0) return;
        launch(context, bias_add::geometry(problem, dtype_, gpu_.device()));
    }

private:
    Dtype dtype_;
};

class OnCpu : public Kernel {
public:
    explicit OnCpu(Dtype dtype) : dtype_(dtype) {}
    void compute(Context& context) override {
        const auto p = problem_of(context);
        const auto row = dtype_ == Dtype::kFloat16 ? cpu::bias_add_f16 : cpu::bias_add_f32;
        context.parallel_for(p.rows, [&](size_t i) { row(p.x, p.bias, p.skip, p.y, i, p.channels); });
    }

private:
    Dtype dtype_;
};

}  // namespace

extern const Operator kBiasAdd{
    .domain = kMicrosoft,
    .name = "BiasAdd",
    .inputs = {{"X"}, {"bias"}, {"skip"}},
    .outputs = {{"Y"}},
    .make_cpu = [](const Node&, Dtype dtype) -> std::unique_ptr<Kernel> { return std::make_unique<OnCpu>(dtype); },
    .make_gpu = [](const Node& node, Dtype dtype, Vendor vendor) -> std::unique_ptr<Kernel> {
        return std::make_unique<OnGpu>(node, dtype, vendor);
    },
};

}  // namespace sdort
