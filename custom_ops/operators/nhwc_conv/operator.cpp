// com.microsoft::NhwcConv on the CPU. Inputs: X (N, H, W, C), W (M, kH, kW, C / group), B (M, optional). Output: Y (N, H', W', M).
//
// ONNX Runtime's own Conv does the work, in float32 and channels-first, on transposed copies: the point is that a graph
// made for a GPU runs here too. On GPUs its own NhwcConv stays.
#include <algorithm>
#include <array>

#include "cpu.h"
#include "runtime/operator.h"

namespace sdort {
namespace {

struct Geometry {
    std::vector<int64_t> kernel, strides, dilations, pads;
    int64_t group;
};

// Products of two such numbers fit into 64 bits.
constexpr int64_t kMost = INT32_MAX;

void require_range(const Shape& values, int64_t least, const char* name) {
    for (const int64_t value : values)
        require(least <= value && value <= kMost, std::string(name) + " must be from " + std::to_string(least) + " to " +
                                                      std::to_string(kMost) + ", it is " + to_string(values));
}

Geometry geometry_of(const Node& node) {
    Geometry g{node.integers("kernel_shape", {}), node.integers("strides", {1, 1}), node.integers("dilations", {1, 1}),
               node.integers("pads", {0, 0, 0, 0}), node.integer("group", 1)};
    const std::string padding = node.string("auto_pad", "NOTSET");
    require(padding == "NOTSET", "auto_pad must be NOTSET, it is " + padding);
    require(g.strides.size() == 2 && g.dilations.size() == 2 && g.pads.size() == 4, "only images are supported: two spatial axes");
    require_range(g.strides, 1, "strides");
    require_range(g.dilations, 1, "dilations");
    require_range(g.pads, 0, "pads");
    require_range({g.group}, 1, "group");
    return g;
}

// Owns what ONNX Runtime's C interface hands out.
template <class T>
using Owned = std::unique_ptr<T, void (*)(T*)>;

class OnCpu : public Kernel {
public:
    OnCpu(const Node& node, Dtype dtype)
        : geometry_(geometry_of(node)),
          dtype_(dtype),
          memory_(cpu_memory()),
          conv_{make_conv(node, false), make_conv(node, true)} {}

    void compute(Context& context) override {
        const Input x = context.input(0), w = context.input(1), bias = context.input(2);
        check(x, w, bias);
        const int64_t n = x.shape[0], area = x.shape[1] * x.shape[2], c = x.shape[3];
        const Shape in{n, c, x.shape[1], x.shape[2]};
        const Shape weights{w.shape[0], w.shape[3], w.shape[1], w.shape[2]};
        const Shape out{n, w.shape[0], size(0, x.shape[1], w.shape[1]), size(1, x.shape[2], w.shape[2])};
        require(out[2] > 0 && out[3] > 0, "the kernel is larger than the padded image " + to_string(x.shape));
        void* y = context.output(0, {n, out[2], out[3], out[1]});
        std::vector<float> xs(element_count(in)), ws(element_count(weights)), ys(element_count(out)), bs;
        turn_in(context, x, n, area, c, xs.data());
        turn_in(context, w, w.shape[0], w.shape[1] * w.shape[2], w.shape[3], ws.data());
        if (bias) {
            bs.resize(out[1]);
            cpu::transpose_to_float(bias.data, dtype_, bs.data(), 1, out[1]);
        }
        convolve(context, {View{xs.data(), in}, View{ws.data(), weights}, View{bs.data(), {out[1]}}}, bool(bias), {ys.data(), out});
        context.parallel_for(n, [&](size_t i) {
            const int64_t plane = out[1] * out[2] * out[3];
            cpu::transpose_from_float(ys.data() + i * plane, static_cast<char*>(y) + i * plane * size_of(dtype_), dtype_,
                                      out[1], out[2] * out[3]);
        });
    }

private:
    struct View {
        float* data;
        Shape shape;
    };

    void check(const Input& x, const Input& w, const Input& bias) const {
        require(x.shape.size() == 4, "X must have the shape (N, H, W, C), it has " + to_string(x.shape));
        require(w.shape.size() == 4, "W must have the shape (M, kH, kW, C / group), it has " + to_string(w.shape));
        require_range(x.shape, 0, "X's shape");
        require_range(w.shape, 0, "W's shape");
        require(w.shape[3] * geometry_.group == x.shape[3], "W " + to_string(w.shape) + " does not fit X " + to_string(x.shape) +
                                                                " with group " + std::to_string(geometry_.group));
        require(geometry_.kernel.empty() || geometry_.kernel == Shape{w.shape[1], w.shape[2]},
                "kernel_shape " + to_string(geometry_.kernel) + " does not fit W " + to_string(w.shape));
        require(!bias || bias.shape == Shape{w.shape[0]}, "B must have the shape (" + std::to_string(w.shape[0]) +
                                                              "), it has " + to_string(bias.shape));
    }

    int64_t size(int axis, int64_t in, int64_t kernel) const {
        const int64_t padded = in + geometry_.pads[axis] + geometry_.pads[axis + 2];
        return (padded - geometry_.dilations[axis] * (kernel - 1) - 1) / geometry_.strides[axis] + 1;
    }

    // (count, area, channels) -> (count, channels, area)
    void turn_in(Context& context, const Input& from, int64_t count, int64_t area, int64_t channels, float* to) const {
        context.parallel_for(count, [&](size_t i) {
            const size_t plane = i * area * channels;
            cpu::transpose_to_float(from.as<char>() + plane * size_of(dtype_), dtype_, to + plane, area, channels);
        });
    }

    void convolve(Context& context, const std::array<View, 3>& inputs, bool with_bias, const View& output) const {
        std::vector<Owned<OrtValue>> values;
        for (const View& view : {inputs[0], inputs[1], inputs[2], output}) values.push_back(tensor(view));
        const std::array<const OrtValue*, 3> in{values[0].get(), values[1].get(), values[2].get()};
        OrtValue* out = values[3].get();
        context.invoke(conv_[with_bias].get(), in.data(), with_bias ? 3 : 2, &out, 1);
    }

    Owned<OrtValue> tensor(const View& view) const {
        static float nothing = 0;
        OrtValue* value = nullptr;
        raise(ort->CreateTensorWithDataAsOrtValue(memory_.get(), view.data ? view.data : &nothing,
                                                  view.data ? element_count(view.shape) * sizeof(float) : 0,
                                                  view.data ? view.shape.data() : empty_, view.data ? view.shape.size() : 1,
                                                  ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT, &value));
        return {value, ort->ReleaseValue};
    }

    static Owned<OrtMemoryInfo> cpu_memory() {
        OrtMemoryInfo* info = nullptr;
        raise(ort->CreateCpuMemoryInfo(OrtArenaAllocator, OrtMemTypeDefault, &info));
        return {info, ort->ReleaseMemoryInfo};
    }

    static Owned<OrtOpAttr> attribute(const char* name, const std::vector<int64_t>& values, OrtOpAttrType type) {
        OrtOpAttr* made = nullptr;
        raise(ort->CreateOpAttr(name, values.data(), static_cast<int>(values.size()), type, &made));
        return {made, ort->ReleaseOpAttr};
    }

    Owned<OrtOp> make_conv(const Node& node, bool with_bias) const {
        const Geometry& g = geometry_;
        std::vector<Owned<OrtOpAttr>> owned;
        owned.push_back(attribute("strides", g.strides, ORT_OP_ATTR_INTS));
        owned.push_back(attribute("dilations", g.dilations, ORT_OP_ATTR_INTS));
        owned.push_back(attribute("pads", g.pads, ORT_OP_ATTR_INTS));
        owned.push_back(attribute("group", {g.group}, ORT_OP_ATTR_INT));
        if (!g.kernel.empty()) owned.push_back(attribute("kernel_shape", g.kernel, ORT_OP_ATTR_INTS));
        std::vector<OrtOpAttr*> attributes;
        for (const auto& each : owned) attributes.push_back(each.get());
        const char* constraint = "T";
        const ONNXTensorElementDataType type = ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT;
        OrtOp* made = nullptr;
        raise(ort->CreateOp(node.info(), "Conv", "", 11, &constraint, &type, 1, attributes.data(),
                            static_cast<int>(attributes.size()), with_bias ? 3 : 2, 1, &made));
        return {made, ort->ReleaseOp};
    }

    static constexpr int64_t empty_[] = {0};
    Geometry geometry_;
    Dtype dtype_;
    Owned<OrtMemoryInfo> memory_;
    std::array<Owned<OrtOp>, 2> conv_;  // without and with a bias
};

const Registration kNhwcConv{{
    .domain = kMicrosoft,
    .name = "NhwcConv",
    .inputs = {{"X"}, {"W"}, {"B", true}},
    .outputs = {{"Y"}},
    .make_cpu = on_cpu<OnCpu>,
}};

}  // namespace
}  // namespace sdort
