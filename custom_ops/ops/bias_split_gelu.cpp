// com.microsoft::BiasSplitGelu. Inputs: X (N, S, 2H), bias (2H). Output: Y (N, S, H).
#include <algorithm>

#include "cpu/rows.h"
#include "kernels/bias_split_gelu_geometry.h"
#include "operator.h"

namespace sdort {
namespace {

bias_split_gelu::Problem problem_of(Context& context) {
    const Input x = context.input(0), bias = context.input(1);
    require(x.shape.size() == 3 && x.shape[2] % 2 == 0, "X must have the shape (N, S, 2H), it has " + to_string(x.shape));
    require(bias.shape == Shape{x.shape[2]}, "bias must have the shape (" + std::to_string(x.shape[2]) + "), it has " +
                                                 to_string(bias.shape));
    const int64_t width = x.shape[2] / 2;
    void* y = context.output(0, {x.shape[0], x.shape[1], width});
    return {x.data, bias.data, y, x.shape[0] * x.shape[1], width};
}

class OnGpu : public GpuKernel {
public:
    OnGpu(const Node& node, Dtype dtype, Vendor vendor) : GpuKernel(node, vendor), dtype_(dtype) {}
    void compute(Context& context) override {
        const auto problem = problem_of(context);
        if (problem.rows * problem.width == 0) return;
        const Device& device = gpu_.device();
        const std::string key = std::string("bias_split_gelu ") + suffix(dtype_) + " rows=" + std::to_string(problem.rows) +
                                " width=" + std::to_string(problem.width);
        run(context, key, bias_split_gelu::variants(problem, dtype_, device), [&](const std::string& variant) {
            return std::vector{bias_split_gelu::launch(problem, dtype_, device, variant)};
        });
    }

private:
    Dtype dtype_;
};

class OnCpu : public Kernel {
public:
    explicit OnCpu(Dtype dtype) : dtype_(dtype) {}
    void compute(Context& context) override {
        const auto p = problem_of(context);
        const cpu::BiasSplitGelu args{p.x, p.bias, p.y, p.width};
        const int64_t step = cpu::rows_per_task(p.width);
        context.parallel_for(ceil_div(p.rows, step), [&](size_t task) {
            const int64_t first = static_cast<int64_t>(task) * step;
            cpu::bias_split_gelu(args, dtype_, first, std::min(step, p.rows - first));
        });
    }

private:
    Dtype dtype_;
};

}  // namespace

extern const Operator kBiasSplitGelu{
    .domain = kMicrosoft,
    .name = "BiasSplitGelu",
    .inputs = {{"X"}, {"bias"}},
    .outputs = {{"Y"}},
    .make_cpu = [](const Node&, Dtype dtype) -> std::unique_ptr<Kernel> { return std::make_unique<OnCpu>(dtype); },
    .make_gpu = [](const Node& node, Dtype dtype, Vendor vendor) -> std::unique_ptr<Kernel> {
        return std::make_unique<OnGpu>(node, dtype, vendor);
    },
};

}  // namespace sdort
