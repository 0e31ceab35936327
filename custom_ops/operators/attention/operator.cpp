// com.microsoft::MultiHeadAttention and, with three inputs, sdort::MultiHeadAttention. Output: (N, S, h * e). Inputs, with h = num_heads:
//
//   query   (N, S, h * d), or (N, S, h, 3, d): query, key and value in one
//   key     (N, L, h * d) or (N, h, L, d), or (N, L, h, 2, d): key and value in one
//   value   (N, L, h * e) or (N, h, L, e)
//   bias    (2 * h * d + h * e), optional, added to query, key and value
//
// attributes: num_heads, scale (default 1 / sqrt d), unidirectional (default 0). Masks, past and present are refused.
#include <cmath>

#include "cpu.h"
#include "geometry.h"
#include "runtime/operator.h"

namespace sdort {
namespace {

using attention::Problem;
using attention::Tensor;

enum { kQuery, kKey, kValue, kBias };
constexpr const char* kRefused[] = {"key_padding_mask", "attention_bias", "past_key", "past_value", "past_sequence_length",
                                    "cache_indirection"};

// Matrices (rows, heads * size) of a batch, `parts` of them interleaved head by head.
Tensor rows_of(const Input& input, int64_t rows, int64_t heads, int64_t size, int64_t parts, int64_t part, size_t bytes) {
    const int64_t row = heads * parts * size;
    return {input.as<char>() + part * size * bytes, rows * row, row, parts * size};
}

class Form {
public:
    explicit Form(const Node& node)
        : heads_(node.integer("num_heads")), scale_(node.real("scale", 0.0f)),
          causal_(node.integer("unidirectional", 0) != 0) {
        require(heads_ > 0, "num_heads must be positive, it is " + std::to_string(heads_));
        for (size_t i = 1; i < 4; ++i)
            require(!node.has_output(i), "the outputs present_key, present_value and qk are not computed");
    }

    Problem problem(Context& context, Dtype dtype) const {
        const size_t bytes = size_of(dtype);
        const size_t count = context.input_count();
        for (size_t i = 0; i < std::size(kRefused); ++i)
            require(i + 4 >= count || !context.input(i + 4), std::string("the input ") + kRefused[i] + " is not supported");
        const Input query = context.input(kQuery);
        const Input key = count > kKey ? context.input(kKey) : Input{}, value = count > kValue ? context.input(kValue) : Input{};
        Problem p{};
        p.heads = heads_;
        p.causal = causal_;
        set_query(query, bytes, p);
        if (query.shape.size() == 5) {
            require(!key && !value, "key and value must be absent beside a packed query, which has the shape " + to_string(query.shape));
            p.keys = p.queries;
        } else {
            require(bool(key), "key is missing: query is not packed, it has the shape " + to_string(query.shape));
            set_key(key, bytes, p);
            key.shape.size() == 5 ? require(!value, "value must be absent beside a packed key, which has the shape " + to_string(key.shape))
                                  : set_value(value, bytes, p);
        }
        const Input bias = count > kBias ? context.input(kBias) : Input{};
        const Shape all{p.heads * (2 * p.size + p.value_size)};
        require(!bias || bias.shape == all, "bias must have the shape " + to_string(all) + ", it has " + to_string(bias.shape));
        p.bias = bias.data;
        p.scale = scale_ == 0.0f ? static_cast<float>(1.0 / std::sqrt(static_cast<double>(p.size))) : scale_;
        p.y = context.output(0, {p.batches, p.queries, p.heads * p.value_size});
        const bool empty = p.batches * p.queries * p.value_size == 0;
        require(empty || p.keys > 0, "there must be at least one key, key has the shape " + to_string(key.shape));
        return p;
    }

private:
    int64_t head_size(const Shape& shape, const char* name) const {
        require(shape[2] % heads_ == 0, std::string(name) + "'s last dimension must be a multiple of num_heads = " +
                                            std::to_string(heads_) + ", it has the shape " + to_string(shape));
        return shape[2] / heads_;
    }

    void set_query(const Input& query, size_t bytes, Problem& p) const {
        const Shape& shape = query.shape;
        const bool packed = shape.size() == 5 && shape[2] == heads_ && shape[3] == 3;
        require(packed || shape.size() == 3, "query must have the shape (N, S, D) or (N, S, " + std::to_string(heads_) +
                                                 ", 3, D), it has " + to_string(shape));
        p.batches = shape[0];
        p.queries = shape[1];
        p.size = p.value_size = packed ? shape[4] : head_size(shape, "query");
        require(p.size > 0, "the head size must be positive, query has the shape " + to_string(shape));
        const int64_t parts = packed ? 3 : 1;
        p.q = rows_of(query, p.queries, heads_, p.size, parts, 0, bytes);
        if (!packed) return;
        p.k = rows_of(query, p.queries, heads_, p.size, parts, 1, bytes);
        p.v = rows_of(query, p.queries, heads_, p.size, parts, 2, bytes);
    }

    void set_key(const Input& key, size_t bytes, Problem& p) const {
        const Shape& shape = key.shape;
        const size_t rank = shape.size();
        const int64_t keys = rank == 4 ? shape[2] : rank > 1 ? shape[1] : 0;
        const Shape flat{p.batches, keys, heads_ * p.size}, apart{p.batches, heads_, keys, p.size},
            packed{p.batches, keys, heads_, 2, p.size};
        require(shape == flat || shape == apart || shape == packed,
                "key must have the shape " + to_string(flat) + ", " + to_string(apart) + " or " + to_string(packed) + ", it has " +
                    to_string(shape));
        p.keys = keys;
        if (rank == 4) {
            p.k = {key.data, heads_ * keys * p.size, p.size, keys * p.size};
            return;
        }
        p.k = rows_of(key, keys, heads_, p.size, rank == 5 ? 2 : 1, 0, bytes);
        if (rank == 5) p.v = rows_of(key, keys, heads_, p.size, 2, 1, bytes);
    }

    void set_value(const Input& value, size_t bytes, Problem& p) const {
        require(bool(value), "value is missing: key is not packed");
        const Shape& shape = value.shape;
        const bool apart = shape.size() == 4 && shape[0] == p.batches && shape[1] == heads_ && shape[2] == p.keys;
        const bool flat = shape.size() == 3 && shape[0] == p.batches && shape[1] == p.keys;
        require(apart || flat, "value must have the shape (" + std::to_string(p.batches) + ", " + std::to_string(p.keys) +
                                   ", D) or (" + std::to_string(p.batches) + ", " + std::to_string(heads_) + ", " +
                                   std::to_string(p.keys) + ", D), it has " + to_string(shape));
        const int64_t size = p.value_size = apart ? shape[3] : head_size(shape, "value");
        p.v = apart ? Tensor{value.data, heads_ * p.keys * size, size, p.keys * size}
                    : rows_of(value, p.keys, heads_, size, 1, 0, bytes);
    }

    int64_t heads_;
    float scale_;
    bool causal_;
};

void compute_on_cpu(const Problem& p, Dtype dtype, const ParallelFor& parallel_for) {
    const int64_t tiles = ceil_div(p.queries, cpu::attention_queries(p));
    parallel_for(p.batches * p.heads * tiles, [&](size_t task) { cpu::attention(p, dtype, task); });
}

size_t queue(const Problem& p, Dtype dtype, Gpu& gpu, void* stream, size_t room) {
    const auto needed = static_cast<size_t>(workspace_bytes(p, dtype, gpu.device()));
    if (needed > room) return needed;
    run_problem(gpu, stream, p, dtype);
    return 0;
}

const bool kDirect = add_direct("attention", compute_on_cpu, queue);

class OnGpu : public GpuKernel {
public:
    OnGpu(const Node& node, Dtype dtype, Vendor vendor)
        : GpuKernel(node, vendor), form_(node), dtype_(dtype), workspace_(node) {
        for (const std::string& kernel : attention::kernels(dtype, gpu_.device())) gpu_.prepare(kernel);
    }

    void compute(Context& context) override {
        Problem p = form_.problem(context, dtype_);
        if (is_empty(p)) return;
        const int64_t bytes = workspace_bytes(p, dtype_, gpu_.device());
        workspace_.with(context, static_cast<size_t>(bytes), [&](void* memory) {
            p.workspace = memory;
            run_problem(gpu_, context.stream(), p, dtype_);
        });
    }

private:
    Form form_;
    Dtype dtype_;
    Workspace workspace_;
};

class OnCpu : public Kernel {
public:
    OnCpu(const Node& node, Dtype dtype) : form_(node), dtype_(dtype) {}
    void compute(Context& context) override {
        const Problem p = form_.problem(context, dtype_);
        if (is_empty(p)) return;
        compute_on_cpu(p, dtype_, context.threads());
    }

private:
    Form form_;
    Dtype dtype_;
};

constexpr auto kInteger = ONNX_TENSOR_ELEMENT_DATA_TYPE_INT32;

const Registration kMultiHeadAttention{{
    .domain = kMicrosoft,
    .name = "MultiHeadAttention",
    .inputs = {{"query"}, {"key", true}, {"value", true}, {"bias", true}, {"key_padding_mask", true, kInteger},
               {"attention_bias", true}, {"past_key", true}, {"past_value", true}, {"past_sequence_length", true, kInteger},
               {"cache_indirection", true, kInteger}},
    .outputs = {{"output"}, {"present_key", true}, {"present_value", true}, {"qk", true}},
    .make_cpu = on_cpu<OnCpu>,
    .make_gpu = on_gpu<OnGpu>,
    .slower_on_cuda = true,
}};

// The same of query, key and value alone, for graphs that ask for this kernel node by node.
const Registration kOwnMultiHeadAttention{{
    .domain = kSdort,
    .name = "MultiHeadAttention",
    .inputs = {{"query"}, {"key"}, {"value"}},
    .outputs = {{"output"}},
    .make_cpu = on_cpu<OnCpu>,
    .make_gpu = on_gpu<OnGpu>,
}};

}  // namespace
}  // namespace sdort
