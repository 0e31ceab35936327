// How an operator is written: one folder in operators/, one `Registration` value, one Kernel class a machine. Operators
// over rows need no class of their own (rows/operator.h).
//
// The overriding operators take the names, inputs and attributes of ONNX Runtime's own (domain com.microsoft; its
// docs/ContribOperators.md) or of ONNX's, the extending ones live in the domain sdort. Every operator is registered once per
// execution provider and dtype; whatever a kernel throws becomes an OrtStatus that names operator and node.
#pragma once

#define ORT_API_MANUAL_INIT
#include <onnxruntime_c_api.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "direct/direct.h"
#include "driver/error.h"
#include "driver/gpu.h"
#include "driver/launch.h"

namespace sdort {

extern const OrtApi* ort;  // API 21, set when the library is registered

using Shape = std::vector<int64_t>;

std::string to_string(const Shape& shape);
int64_t element_count(const Shape& shape);

// Throws Error with the status's text if there is one.
void raise(OrtStatus* status);

// The node that a kernel is made for.
class Node {
public:
    explicit Node(const OrtKernelInfo* info) : info_(info) {}
    std::string name() const;
    int64_t integer(const char* attribute, std::optional<int64_t> fallback = {}) const;  // throws Error if it is missing
    float real(const char* attribute, std::optional<float> fallback = {}) const;
    std::string string(const char* attribute, std::optional<std::string> fallback = {}) const;
    std::vector<int64_t> integers(const char* attribute, std::vector<int64_t> fallback) const;
    bool has_output(size_t index) const;  // false for an optional one that nobody reads
    int device_id() const;  // of the execution provider's own memory
    const OrtKernelInfo* info() const { return info_; }

private:
    const OrtKernelInfo* info_;
};

struct Input {
    const void* data = nullptr;  // null if the optional input is absent
    Shape shape;
    explicit operator bool() const { return data != nullptr; }
    template <class T>
    const T* as() const { return static_cast<const T*>(data); }
};

// One execution of a node.
class Context {
public:
    explicit Context(OrtKernelContext* context) : context_(context) {}
    Input input(size_t index) const;
    size_t input_count() const;
    void* output(size_t index, const Shape& shape);  // null if the node does not have it
    // Runs one of ONNX Runtime's own operators on the caller's values.
    void invoke(const OrtOp* op, const OrtValue* const* inputs, int input_count, OrtValue* const* outputs, int output_count) const;
    const OrtKernelContext* get() const { return context_; }
    void* stream() const;  // hipStream_t or CUstream
    // body(i) for i in [0, count) on ONNX Runtime's own threads; `body` must not throw.
    void parallel_for(size_t count, const std::function<void(size_t)>& body) const;
    ParallelFor threads() const {
        return [this](size_t count, const auto& body) { parallel_for(count, body); };
    }

private:
    OrtKernelContext* context_;
};

// Memory of the execution provider's arena for launches that are queued on a context's stream.
class Workspace {
public:
    explicit Workspace(const Node& node);
    ~Workspace();
    Workspace(const Workspace&) = delete;
    Workspace& operator=(const Workspace&) = delete;
    // use(memory), with `bytes` of memory that is given back when it has queued its launches: what comes later on the stream,
    // or on another one that waits for it, may have it then. Null for no bytes.
    void with(const Context& context, size_t bytes, const std::function<void(void* memory)>& use) const;

private:
    OrtAllocator* allocator_ = nullptr;
    const OrtMemoryInfo* memory_ = nullptr;
};

class Kernel {
public:
    virtual ~Kernel() = default;
    virtual void compute(Context& context) = 0;
};

// A kernel on a GPU: knows its device, and queues launches (driver/variants.h) on the stream that ONNX Runtime gives.
class GpuKernel : public Kernel {
protected:
    GpuKernel(const Node& node, Vendor vendor) : gpu_(Gpu::get(vendor, node.device_id())) {}
    Gpu& gpu_;
};

// An operator on a GPU whose launches follow from the problem and the device alone. A Form is made of a node and reads its
// attributes; its problem(context) checks the inputs' shapes and has the outputs made. What is found beside the problem's
// type, in its namespace: is_empty(problem) and the geometry (rows/geometry.h: key, variants, launches).
template <class Form>
class GpuKernelOf : public GpuKernel {
public:
    GpuKernelOf(const Node& node, Dtype dtype, Vendor vendor) : GpuKernel(node, vendor), form_(node), dtype_(dtype) {}
    void compute(Context& context) override {
        const auto problem = form_.problem(context, dtype_);
        if (is_empty(problem)) return;
        run_problem(gpu_, context.stream(), problem, dtype_);
    }

private:
    Form form_;
    Dtype dtype_;
};

struct Slot {
    const char* name;
    bool optional = false;
    // Empty: the operator's dtype T. "int64" and the like: always that type.
    std::optional<ONNXTensorElementDataType> fixed = {};
};

struct Operator {
    const char* domain;
    const char* name;
    std::vector<Slot> inputs;
    std::vector<Slot> outputs;
    // Null where the operator has no kernel for that machine.
    std::unique_ptr<Kernel> (*make_cpu)(const Node&, Dtype) = nullptr;
    std::unique_ptr<Kernel> (*make_gpu)(const Node&, Dtype, Vendor) = nullptr;
    // On NVIDIA GPUs ONNX Runtime's own kernel is faster: registered there only if asked for by name (SDORT_OPS).
    bool slower_on_cuda = false;
};

constexpr const char* kOnnx = "";  // ONNX's own domain
constexpr const char* kMicrosoft = "com.microsoft";
constexpr const char* kSdort = "sdort";

// For Operator::make_cpu and make_gpu: a Made of the node and what else its constructor takes.
template <class Made, const auto&... more>
std::unique_ptr<Kernel> on_cpu(const Node& node, Dtype dtype) {
    return std::make_unique<Made>(node, dtype, more...);
}
template <class Made, const auto&... more>
std::unique_ptr<Kernel> on_gpu(const Node& node, Dtype dtype, Vendor vendor) {
    return std::make_unique<Made>(node, dtype, vendor, more...);
}

// Makes an operator one of the library's, as long as it lives: a constant in the operator's own file.
struct Registration {
    explicit Registration(Operator op);
};

// Every operator of the library, by domain and name.
const std::vector<const Operator*>& operators();

// Throws Error unless `condition`; the message says what was expected and what came.
inline void require(bool condition, const std::string& message) {
    if (!condition) throw Error(message);
}

}  // namespace sdort
