// torch.ops.sdort.*.launch: from torch's tensors to kernels, on torch's current stream, without Python in between.
//
// sdort/integrations/torch_operators has all the rest: schemas, shapes (checked before these are called), empty outputs, fake
// tensors, gradients, and torch's own operators for tensors that the kernels have no form for.
#include <cmath>
#include <map>
#include <mutex>

#include "direct/direct.h"
#include "driver/error.h"
#include "driver/shared_library.h"
#include "operators/attention/attention.h"
#include "operators/bias_add/bias_add.h"
#include "operators/bias_split_gelu/bias_split_gelu.h"
#include "operators/group_norm/problem.h"
#include "operators/layer_norm/layer_norm.h"
#include "operators/skip_layer_norm/skip_layer_norm.h"
#include "tensors.h"

namespace sdort::torch {
namespace {

// What `launch` returns.
enum Outcome : int64_t { kFailed = -1, kQueued = 0, kUnserved = 1, kCopyNeeded = 2 };

// Where the kernels of CPU tensors and of GPU tensors are launched.
Place place_of_cpu = kOnCpu, place_of_gpu = kOnCuda;

Dtype type_of(const Tensor& x) {
    const bool half = x.dtype() == stable_abi().float16();
    if (!half && x.dtype() != stable_abi().float32()) throw Unserved{"there are kernels for float32 and float16 alone"};
    if (x.numel() >= int64_t{1} << 31) throw Unserved{"a tensor has 2^31 elements or more"};
    return half ? Dtype::kFloat16 : Dtype::kFloat32;
}

void* rows_of(const Tensor& x, const char* name) {
    if (!x.is_dense()) throw Unserved{std::string(name) + " is not contiguous (contiguous() makes it so)"};
    return x.data();
}

void* channels_last(const Tensor& x, const char* name) {
    if (x.is_dense(true)) return x.data();
    throw Unserved{std::string(name) + " is not channels-last (model.to(memory_format=torch.channels_last) makes it so)"};
}

// Null where it was left out.
void* vector_of(const Tensor& values, int32_t dtype) {
    if (!values) return nullptr;
    if (values.dtype() != dtype || !values.is_dense() || !values.is_aligned()) throw NeedsCopy{};
    return values.data();
}

int64_t last(const Tensor& x) { return x.size(x.dim() - 1); }
int64_t rows(const Tensor& x) { return last(x) ? x.numel() / last(x) : 0; }

Tensor bytes_beside(const Tensor& x, size_t count) {
    const StableAbi& abi = stable_abi();
    const int64_t size = static_cast<int64_t>(count), stride = 1;
    Handle made = nullptr;
    if (abi.empty(1, &size, &stride, abi.uint8(), x.device_type(), x.device(), &made) != 0)
        throw Error("torch has no " + std::to_string(count) + " bytes of workspace left");
    return Tensor(made);
}

// Meanwhile the tensor's GPU is the thread's current one, which drivers launch and load on.
class OnDevice {
public:
    explicit OnDevice(int32_t device) {
        int32_t current = device;
        stable_abi().current_device(&current);
        if (current != device) stable_abi().make_guard(device, &guard_);
    }
    ~OnDevice() {
        if (guard_) stable_abi().release_guard(guard_);
    }
    OnDevice(const OnDevice&) = delete;

private:
    Guard guard_ = nullptr;
};

using Queue = std::function<size_t(size_t workspace_bytes)>;

// torch's allocator gives the memory to whom comes later on the stream.
void with_workspace(const Tensor& x, void*& workspace, bool cleared, const Queue& queue) {
    const size_t needed = queue(0);
    if (!needed) return;
    const Tensor memory = bytes_beside(x, needed);
    if (cleared) memory.clear();
    workspace = memory.data();
    queue(needed);
}

// The workspace of a stream was cleared once, and launches on a stream do not overlap. It is no tensor of torch's: one that is
// made while torch.compile tries a graph out would be in the graph's pool, which must not outlive it.
void with_kept_workspace(int32_t device, Gpu& gpu, void* stream, void*& workspace, const Queue& queue) {
    constexpr size_t kLeast = 1 << 16;  // bytes: statistics take ten to some hundred thousand, and grow seldom
    struct Kept {
        void* memory = nullptr;
        size_t bytes = 0;
    };
    static std::mutex mutex;
    static std::map<std::pair<int32_t, void*>, Kept> all;  // what was outgrown stays: kernels that are queued may use it
    const std::lock_guard lock(mutex);
    Kept& kept = all[{device, stream}];
    workspace = kept.memory;
    if (const size_t needed = queue(kept.bytes)) {
        const size_t bytes = std::max({needed, 2 * kept.bytes, kLeast});
        kept = {gpu.zeroed(bytes), bytes};
        workspace = kept.memory;
        queue(bytes);
    }
}

void in_parallel(size_t count, const std::function<void(size_t)>& body) {
    const auto some = [](int64_t begin, int64_t end, void* context) {
        for (int64_t i = begin; i < end; ++i) (*static_cast<const std::function<void(size_t)>*>(context))(static_cast<size_t>(i));
    };
    stable_abi().parallel_for(0, static_cast<int64_t>(count), 1, some, const_cast<std::function<void(size_t)>*>(&body));
}

template <class Problem>
void launch(const char* kernel, Problem& p, const Tensor& x) {
    const Direct& direct = find_direct(kernel, sizeof p);
    const Dtype dtype = type_of(x);
    const Place place = x.on_cpu() ? place_of_cpu : place_of_gpu;
    if (place == kOnCpu) return direct.on_cpu(&p, dtype, in_parallel);
    const OnDevice current(x.device());
    Gpu& gpu = gpu_of(place, x.device());
    gpu.make_current();
    void* stream = nullptr;
    if (!x.on_cpu() && (!stable_abi().current_stream || stable_abi().current_stream(x.device(), &stream) != 0))
        throw Error("this torch does not tell its current stream");
    const Queue queue = [&](size_t room) { return direct.on_gpu(&p, dtype, gpu, stream, room); };
    if constexpr (requires { p.sum, p.workspace; }) {
        // A captured graph has its own workspace, in its own memory, and clears it whenever it is replayed.
        if (gpu.is_capturing(stream)) return with_workspace(x, p.workspace, true, queue);
        with_kept_workspace(x.device(), gpu, stream, p.workspace, queue);
    } else if constexpr (requires { p.workspace; }) {
        with_workspace(x, p.workspace, false, queue);
    } else {
        queue(0);
    }
}

void bias_add(Arguments& in) {
    const Tensor x = in.tensor(), bias = in.tensor(), skip = in.tensor(), y = in.tensor();
    type_of(x);
    bias_add::Problem p{{rows_of(x, "x"), vector_of(bias, x.dtype()), rows_of(skip, "skip"), y.data()}, rows(x), last(x)};
    launch("bias_add", p, x);
}

void bias_split_gelu(Arguments& in) {
    const Tensor x = in.tensor(), bias = in.tensor(), y = in.tensor();
    type_of(x);
    bias_split_gelu::Problem p{{rows_of(x, "x"), vector_of(bias, x.dtype()), y.data()}, rows(x), last(y)};
    launch("bias_split_gelu", p, x);
}

void layer_norm(Arguments& in) {
    const Tensor x = in.tensor(), weight = in.tensor(), bias = in.optional_tensor();
    const double epsilon = in.real();
    const Tensor y = in.tensor();
    type_of(x);
    layer_norm::Problem p{{rows_of(x, "x"), vector_of(weight, x.dtype()), vector_of(bias, x.dtype()), y.data()},
                          rows(x), last(x), static_cast<float>(epsilon)};
    launch("layer_norm", p, x);
}

void skip_layer_norm(Arguments& in) {
    const Tensor x = in.tensor(), skip = in.tensor(), weight = in.tensor(), bias = in.optional_tensor();
    const double epsilon = in.real();
    const Tensor shift = in.optional_tensor(), y = in.tensor(), sum = in.tensor();
    type_of(x);
    skip_layer_norm::Problem p{{rows_of(x, "x"), rows_of(skip, "skip"), vector_of(weight, x.dtype()), vector_of(bias, x.dtype()),
                                vector_of(shift, x.dtype()), y.data(), sum.data()},
                               rows(x), rows(x), last(x), static_cast<float>(epsilon)};
    launch("skip_layer_norm", p, x);
}

// Both normalizations of groups; `skip` and `sum` may be left out.
void group_norm(const Tensor& x, const Tensor& skip, int64_t groups, const Tensor& weight, const Tensor& bias, double epsilon,
                bool silu, const Tensor& shift, const Tensor& y, const Tensor& sum) {
    group_norm::Problem p{};
    const bool half = type_of(x) == Dtype::kFloat16;
    p.half_affine = half && weight.dtype() == x.dtype() && bias.dtype() == x.dtype();
    const int32_t affine = p.half_affine ? x.dtype() : stable_abi().float32();
    p.x = channels_last(x, "x");
    if (skip) p.skip = channels_last(skip, "skip");
    if (shift) (shift.dim() == 1 ? p.bias : p.embedding) = vector_of(shift, x.dtype());  // of (C), of (N, C)
    p.gamma = vector_of(weight, affine);
    p.beta = vector_of(bias, affine);
    p.y = y.data();
    if (sum) p.sum = sum.data();
    p.epsilon = static_cast<float>(epsilon);
    p.silu = silu;
    p.images = x.size(0);
    p.channels = p.x_channels = x.size(1);
    p.hw = 1;
    for (int64_t d = 2; d < x.dim(); ++d) p.hw *= x.size(d);
    p.groups = groups;
    launch("group_norm", p, x);
}

void group_norm(Arguments& in) {
    const Tensor x = in.tensor();
    const int64_t groups = in.integer();
    const Tensor weight = in.tensor(), bias = in.tensor();
    const double epsilon = in.real();
    const bool silu = in.boolean();
    const Tensor shift = in.optional_tensor(), y = in.tensor();
    group_norm(x, {}, groups, weight, bias, epsilon, silu, shift, y, {});
}

void skip_group_norm(Arguments& in) {
    const Tensor x = in.tensor(), skip = in.tensor();
    const int64_t groups = in.integer();
    const Tensor weight = in.tensor(), bias = in.tensor();
    const double epsilon = in.real();
    const bool silu = in.boolean();
    const Tensor shift = in.optional_tensor(), y = in.tensor(), sum = in.tensor();
    group_norm(x, skip, groups, weight, bias, epsilon, silu, shift, y, sum);
}

attention::Tensor heads_of(const Tensor& x, const char* name) {
    if (x.stride(3) != 1 && x.size(3) > 1)
        throw Unserved{std::string(name) + "'s last dimension is not contiguous (contiguous() makes it so)"};
    return {x.data(), x.stride(0), x.stride(2), x.stride(1)};
}

void attention(Arguments& in) {
    const Tensor query = in.tensor(), key = in.tensor(), value = in.tensor();
    const double scale = in.optional_real(std::nan(""));
    const bool causal = in.boolean();
    const Tensor y = in.tensor();
    for (const Tensor* const x : {&query, &key, &value}) type_of(*x);
    attention::Problem p{};
    p.q = heads_of(query, "query");
    p.k = heads_of(key, "key");
    p.v = heads_of(value, "value");
    p.y = y.data();
    p.batches = query.size(0), p.heads = query.size(1), p.queries = query.size(2), p.keys = key.size(2);
    p.size = query.size(3), p.value_size = value.size(3);
    p.scale = static_cast<float>(std::isnan(scale) ? 1 / std::sqrt(static_cast<double>(p.size)) : scale);
    p.causal = causal;
    launch("attention", p, query);
}

// Nothing that is thrown reaches torch, which may have another C++ runtime.
template <void (*Operator)(Arguments&)>
void boxed(Value* stack, uint64_t, uint64_t) noexcept {
    Arguments arguments(stack);
    *reinterpret_cast<int64_t*>(stack) = guarded([&]() -> int64_t {
        try {
            Operator(arguments);
            return kQueued;
        } catch (const Unserved& unserved) {
            set_last_error(unserved.reason);
            return kUnserved;
        } catch (const NeedsCopy&) {
            return kCopyNeeded;
        }
    });
}

void add_all(const char* key) {
    const StableAbi& abi = stable_abi();
    Library library = nullptr;  // lives as long as the process
    bool sound = abi.implement("sdort", key, __FILE__, __LINE__, &library) == 0;
    const auto add = [&](const char* name, auto function) { sound = sound && abi.add(library, name, function) == 0; };
    add("bias_add.launch", boxed<bias_add>);
    add("bias_split_gelu.launch", boxed<bias_split_gelu>);
    add("layer_norm.launch", boxed<layer_norm>);
    add("skip_layer_norm.launch", boxed<skip_layer_norm>);
    add("group_norm.launch", boxed<group_norm>);
    add("skip_group_norm.launch", boxed<skip_group_norm>);
    add("attention.launch", boxed<attention>);
    if (!sound) throw Error(std::string("torch did not take the operators for ") + key);
}

}  // namespace
}  // namespace sdort::torch

// Has torch call these kernels for tensors of the CPU, launched on `cpu`, and of GPUs, launched on `gpu`; both are places of
// direct.h. To be called after the operators were defined. 0; or -1, with the reason in sdort_kernel_error().
SDORT_EXPORT int64_t sdort_torch_register(int cpu, int gpu) {
    using namespace sdort;
    return guarded([&]() -> int64_t {
        static const bool added = (torch::add_all("CPU"), torch::add_all("CUDA"), true);
        torch::place_of_cpu = static_cast<Place>(cpu), torch::place_of_gpu = static_cast<Place>(gpu);
        return added ? 0 : -1;
    });
}
