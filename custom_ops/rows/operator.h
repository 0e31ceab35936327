// An operator over rows, made of what differs between them. In its file:
//
//   struct QuickGelu {
//       using Problem = quick_gelu::Problem;                     // quick_gelu.h
//       explicit QuickGelu(const Node& node);                    // reads and checks the attributes
//       Problem problem(Context& context, Dtype) const;          // checks the inputs' shapes, has the outputs made
//       template <class T>                                       // on the CPU: rows [first, first + count)
//       SDORT_CPU_INLINE static void rows(const Problem& p, int64_t first, int64_t count);
//   };
//   SDORT_ROW_OPERATOR(QuickGelu, .domain = kMicrosoft, .name = "QuickGelu", .inputs = {{"X"}}, .outputs = {{"Y"}})
//
// The kernel classes of both machines, the tuning key and the registrations, with ONNX Runtime and without (direct/direct.h),
// come from here.
#pragma once

#include <algorithm>

#include "cpu/math.h"
#include "cpu/vector.h"
#include "runtime/operator.h"

namespace sdort::rows {

// Rows of `width` elements that make a task of some ten microseconds: large enough for a thread pool, small enough to share.
inline int64_t rows_per_task(int64_t width) { return std::max<int64_t>(1, 32768 / width); }

template <class Form>
using OfRows = void (*)(const typename Form::Problem& problem, int64_t first, int64_t count);

template <class Form, OfRows<Form> f32, OfRows<Form> f16>
void compute_on_cpu(const typename Form::Problem& problem, Dtype dtype, const ParallelFor& parallel_for) {
    const int64_t step = rows_per_task(problem.width);
    const auto body = dtype == Dtype::kFloat16 ? f16 : f32;
    parallel_for(ceil_div(problem.rows, step), [&](size_t task) {
        const int64_t first = static_cast<int64_t>(task) * step;
        body(problem, first, std::min(step, problem.rows - first));
    });
}

template <class Problem>
size_t queue(const Problem& problem, Dtype dtype, Gpu& gpu, void* stream, size_t) {
    run_problem(gpu, stream, problem, dtype);
    return 0;
}

template <class Form, OfRows<Form> f32, OfRows<Form> f16>
class OnCpu : public Kernel {
public:
    OnCpu(const Node& node, Dtype dtype) : form_(node), dtype_(dtype) {}
    void compute(Context& context) override {
        const auto problem = form_.problem(context, dtype_);
        if (!is_empty(problem)) compute_on_cpu<Form, f32, f16>(problem, dtype_, context.threads());
    }

private:
    Form form_;
    Dtype dtype_;
};

template <class Form, OfRows<Form> f32, OfRows<Form> f16>
Registration registration(Operator op) {
    op.make_cpu = on_cpu<OnCpu<Form, f32, f16>>;
    op.make_gpu = on_gpu<GpuKernelOf<Form>>;
    using Problem = typename Form::Problem;
    add_direct<Problem>(Problem::kName, compute_on_cpu<Form, f32, f16>, queue<Problem>);
    return Registration(std::move(op));
}

// What follows the name are Operator's fields.
#define SDORT_ROW_OPERATOR(Form, ...)                                                                    \
    SDORT_CPU_CLONES static void Form##_f32(const Form::Problem& p, int64_t first, int64_t count) { \
        Form::rows<float>(p, first, count);                                                              \
    }                                                                                                    \
    SDORT_CPU_CLONES static void Form##_f16(const Form::Problem& p, int64_t first, int64_t count) { \
        Form::rows<_Float16>(p, first, count);                                                           \
    }                                                                                                    \
    static const Registration Form##_registration =                                                     \
        ::sdort::rows::registration<Form, Form##_f32, Form##_f16>({__VA_ARGS__});

inline std::string shape_message(const std::string& name, const std::string& shape, const Input& input) {
    return name + " must have the shape " + shape + ", it has " + to_string(input.shape);
}

// Throws Error unless the input is a vector of `width` elements, or an optional one that is absent.
inline void require_vector(const Input& input, int64_t width, const char* name) {
    require(!input || input.shape == Shape{width}, shape_message(name, "(" + std::to_string(width) + ")", input));
}

}  // namespace sdort::rows
