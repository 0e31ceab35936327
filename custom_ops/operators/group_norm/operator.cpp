// Four operators, one computation (group_norm.h):
//
//   com.microsoft::GroupNorm      inputs X, gamma, beta; output Y
//   com.microsoft::SkipGroupNorm  inputs X, gamma, beta, skip, bias (optional); outputs Y, S (optional)
//   sdort::GroupNorm              inputs X, X2 (optional), gamma, beta, skip (optional), bias (optional),
//                                 embedding (optional); outputs Y, S (optional)
//   sdort::BiasGroupNorm          inputs X, gamma, beta, bias; outputs Y, S (optional)
//
//   attributes of all: groups, activation (0: none, 1: SiLU; default 0), epsilon (default 1e-5), channels_last (default 1)
//
//   X     (N, H, W, C1), Y and S (N, H, W, C). C = C1, or C1 + C2 where X2 is given. Only com.microsoft::GroupNorm takes
//         (N, C, H, W) with channels_last = 0, and only on the CPU: on GPUs ONNX Runtime's own does not either.
//   X2    (N, H, W, C2): as if Concat (X, X2) along the channels were the input
//   gamma, beta (C), float32 whatever T is; bias (C)
//   skip  (N, H, W, C). SkipGroupNorm's may also be (N, C) or (N, 1, 1, C), the same for every pixel.
//   embedding  (N, C) or (N, 1, 1, C), the same for every pixel
//
//   S = X + skip + bias + embedding, rounded once to T; Y = activation(normalized S * gamma + beta), as T.
#include <array>
#include <cmath>
#include <map>
#include <mutex>

#include "cpu.h"
#include "runtime/operator.h"

namespace sdort {
namespace {

using group_norm::Problem;

// Where each operator has its inputs; -1 for those that it does not have.
struct Slots {
    int x2, gamma, beta, skip, bias, embedding;
};
constexpr Slots kPlain{-1, 1, 2, -1, -1, -1}, kSkip{-1, 1, 2, 3, 4, -1}, kExtended{1, 2, 3, 4, 5, 6}, kBias{-1, 1, 2, -1, 3, -1};

class Form {
public:
    Form(const Node& node, Slots slots)
        : slots_(slots), groups_(node.integer("groups")), epsilon_(node.real("epsilon", 1e-5f)),
          silu_(node.integer("activation", 0)), channels_last_(node.integer("channels_last", 1) != 0) {
        require(groups_ > 0, "groups must be positive, it is " + std::to_string(groups_));
        require(epsilon_ >= 0, "epsilon must not be negative, it is " + std::to_string(epsilon_));
        require(silu_ == 0 || silu_ == 1, "activation must be 0 (none) or 1 (SiLU), it is " + std::to_string(silu_));
        require(channels_last_ || slots.bias < 0, "channels_last must be 1: there is no form for (N, C, H, W)");
    }

    bool channels_last() const { return channels_last_; }

    Problem problem(Context& context) const {
        const Input x = context.input(0), x2 = optional(context, slots_.x2);
        require(x.shape.size() == 4, "X must have four dimensions, it has the shape " + to_string(x.shape));
        Shape shape = x.shape;
        if (x2) shape = joined(x.shape, x2.shape);
        Problem p{};
        p.images = shape[0];
        p.channels = channels_last_ ? shape[3] : shape[1];
        p.x_channels = channels_last_ ? x.shape[3] : shape[1];
        p.hw = channels_last_ ? shape[1] * shape[2] : shape[2] * shape[3];
        p.groups = groups_;
        p.epsilon = epsilon_;
        p.silu = static_cast<int32_t>(silu_);
        require(p.channels % groups_ == 0, "the number of channels must be a multiple of groups = " +
                                               std::to_string(groups_) + ", it is " + std::to_string(p.channels));
        require(p.hw <= INT32_MAX / 2 && p.channels <= INT32_MAX / 2, "X is too large: " + to_string(shape));
        p.x = x.data;
        p.x2 = x2.data;
        p.gamma = vector(context, slots_.gamma, "gamma", p.channels);
        p.beta = vector(context, slots_.beta, "beta", p.channels);
        p.bias = vector(context, slots_.bias, "bias", p.channels);
        set_skip(context, shape, p);
        p.y = context.output(0, shape);
        if (slots_.bias >= 0) p.sum = context.output(1, shape);  // null if nobody reads it
        return p;
    }

private:
    static Input optional(Context& context, int slot) { return slot < 0 ? Input{} : context.input(slot); }

    static Shape joined(const Shape& x, const Shape& x2) {
        Shape rest = x;
        if (x2.size() == 4) rest[3] = x2[3];
        require(x2 == rest, "X2 must have X's shape " + to_string(x) + " but for the channels, it has " + to_string(x2));
        rest[3] += x[3];
        return rest;
    }

    static const void* vector(Context& context, int slot, const char* name, int64_t channels) {
        const Input input = optional(context, slot);
        require(!input || input.shape == Shape{channels}, std::string(name) + " must have the shape (" +
                                                              std::to_string(channels) + "), it has " + to_string(input.shape));
        return input.data;
    }

    void set_skip(Context& context, const Shape& shape, Problem& p) const {
        const Input skip = optional(context, slots_.skip), embedding = optional(context, slots_.embedding);
        const Shape flat{shape[0], p.channels}, pixel{shape[0], 1, 1, p.channels};
        if (embedding) {
            require(embedding.shape == flat || embedding.shape == pixel,
                    "embedding must have the shape " + to_string(flat) + " or " + to_string(pixel) + ", it has " +
                        to_string(embedding.shape));
            p.embedding = embedding.data;
        }
        if (!skip) return;
        const bool broadcast = slots_.embedding < 0 && (skip.shape == flat || skip.shape == pixel);
        require(broadcast || skip.shape == shape,
                "skip must have X's shape " + to_string(shape) +
                    (slots_.embedding < 0 ? ", or " + to_string(flat) + ", or " + to_string(pixel) : "") + ", it has " +
                    to_string(skip.shape));
        (broadcast ? p.embedding : p.skip) = skip.data;
    }

    Slots slots_;
    int64_t groups_;
    float epsilon_;
    int64_t silu_;
    bool channels_last_;
};

void planes_on_cpu(const Problem& p, Dtype dtype, const ParallelFor& parallel_for) {
    const auto body = dtype == Dtype::kFloat16 ? cpu::group_norm_planes_f16 : cpu::group_norm_planes_f32;
    parallel_for(p.images * p.groups, [&](size_t task) { body(p, task); });
}

void rows_on_cpu(const Problem& p, Dtype dtype, const ParallelFor& parallel_for) {
    const bool half = dtype == Dtype::kFloat16;
    const size_t tasks = p.images * cpu::group_norm_chunks(p);
    std::vector<float> partials(tasks * 3 * p.channels), coefficients(p.images * 3 * p.channels);
    const auto measure = half ? cpu::group_norm_measure_f16 : cpu::group_norm_measure_f32;
    const auto apply = half ? cpu::group_norm_apply_f16 : cpu::group_norm_apply_f32;
    parallel_for(tasks, [&](size_t task) { measure(p, task, partials.data()); });
    for (int64_t image = 0; image < p.images; ++image)
        cpu::group_norm_merge(p, image, partials.data(), coefficients.data());
    parallel_for(tasks, [&](size_t task) { apply(p, task, coefficients.data()); });
}

// Plans, made once a shape: on NVIDIA that takes the host 20 µs, as long as the GPU computes.
class Plans {
public:
    const std::vector<group_norm::Plan>& of(const Problem& p, Dtype dtype, const Device& device) {
        const auto [found, is_new] = plans_.try_emplace({p.images, p.hw, p.channels, p.x_channels, p.groups});
        if (is_new) found->second = group_norm::plans(p, dtype, device);
        return found->second;
    }

private:
    std::map<std::array<int64_t, 5>, std::vector<group_norm::Plan>> plans_;
};

void run_plans(Gpu& gpu, void* stream, const Problem& p, Dtype dtype, const std::vector<group_norm::Plan>& plans) {
    run_variant(gpu, stream, group_norm::key(p, dtype), group_norm::variants(plans), [&](const std::string& variant) {
        return group_norm::launches(p, dtype, gpu.device(), plans, variant);
    });
}

size_t queue(const Problem& p, Dtype dtype, Gpu& gpu, void* stream, size_t room) {
    static std::mutex mutex;
    static std::map<std::pair<Gpu*, Dtype>, Plans> all;
    const std::lock_guard lock(mutex);  // as OnGpu's
    const std::vector<group_norm::Plan>& plans = all[{&gpu, dtype}].of(p, dtype, gpu.device());
    const size_t needed = group_norm::workspace_bytes(p, gpu.device(), plans);
    if (needed > room) return needed;
    run_plans(gpu, stream, p, dtype, plans);
    return 0;
}

const bool kDirect = add_direct("group_norm", rows_on_cpu, queue);

class OnCpu : public Kernel {
public:
    OnCpu(const Node& node, Dtype dtype, Slots slots) : form_(node, slots), dtype_(dtype) {}

    void compute(Context& context) override {
        const Problem p = form_.problem(context);
        if (is_empty(p)) return;
        const auto compute = form_.channels_last() ? rows_on_cpu : planes_on_cpu;
        compute(p, dtype_, context.threads());
    }

private:
    Form form_;
    Dtype dtype_;
};

class OnGpu : public GpuKernel {
public:
    OnGpu(const Node& node, Dtype dtype, Vendor vendor, Slots slots)
        : GpuKernel(node, vendor), form_(node, slots), dtype_(dtype) {
        require(form_.channels_last(), "channels_last must be 1 on GPUs");
        for (const std::string& kernel : group_norm::kernels(dtype, gpu_.device())) gpu_.prepare(kernel);
    }

    void compute(Context& context) override {
        Problem p = form_.problem(context);
        if (is_empty(p)) return;
        // Threads may share a stream: the launches of one must not come between those of another, on one workspace.
        const std::lock_guard lock(mutex_);
        const Device& device = gpu_.device();
        const std::vector<group_norm::Plan>& plans = plans_.of(p, dtype_, device);
        p.workspace = workspace(context.stream(), group_norm::workspace_bytes(p, device, plans));
        run_plans(gpu_, context.stream(), p, dtype_, plans);
    }

private:
    // Launches on one workspace must not overlap, so each stream has its own. A smaller one that is outgrown stays: a
    // captured graph may use it.
    void* workspace(void* stream, size_t bytes) {
        auto& [memory, size] = workspaces_[stream];
        if (size < bytes) {
            memory = gpu_.zeroed(bytes);
            size = bytes;
        }
        return memory;
    }

    Form form_;
    Dtype dtype_;
    std::mutex mutex_;
    std::map<void*, std::pair<void*, size_t>> workspaces_;
    Plans plans_;
};

constexpr auto kFloat = ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT;

const Registration kGroupNorm{{
    .domain = kMicrosoft,
    .name = "GroupNorm",
    .inputs = {{"X"}, {"gamma", false, kFloat}, {"beta", false, kFloat}},
    .outputs = {{"Y"}},
    .make_cpu = on_cpu<OnCpu, kPlain>,
    .make_gpu = on_gpu<OnGpu, kPlain>,
}};

const Registration kSkipGroupNorm{{
    .domain = kMicrosoft,
    .name = "SkipGroupNorm",
    .inputs = {{"X"}, {"gamma", false, kFloat}, {"beta", false, kFloat}, {"skip"}, {"bias", true}},
    .outputs = {{"Y"}, {"S", true}},
    .make_cpu = on_cpu<OnCpu, kSkip>,
    .make_gpu = on_gpu<OnGpu, kSkip>,
}};

const Registration kExtendedGroupNorm{{
    .domain = kSdort,
    .name = "GroupNorm",
    .inputs = {{"X"}, {"X2", true}, {"gamma", false, kFloat}, {"beta", false, kFloat}, {"skip", true}, {"bias", true},
               {"embedding", true}},
    .outputs = {{"Y"}, {"S", true}},
    .make_cpu = on_cpu<OnCpu, kExtended>,
    .make_gpu = on_gpu<OnGpu, kExtended>,
}};

const Registration kBiasGroupNorm{{
    .domain = kSdort,
    .name = "BiasGroupNorm",
    .inputs = {{"X"}, {"gamma", false, kFloat}, {"beta", false, kFloat}, {"bias"}},
    .outputs = {{"Y"}, {"S", true}},
    .make_cpu = on_cpu<OnCpu, kBias>,
    .make_gpu = on_gpu<OnGpu, kBias>,
}};

}  // namespace
}  // namespace sdort
