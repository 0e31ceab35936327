// How an operator is written: one file in ops/, one `Operator` value, one Kernel class a machine.
//
// The overriding operators take the names, inputs and attributes of ONNX Runtime's own (domain com.microsoft; its
// docs/ContribOperators.md), the extending ones live in the domain sdort. Every operator is registered once per
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
    void* stream() const;  // hipStream_t or CUstream
    // body(i) for i in [0, count) on ONNX Runtime's own threads; `body` must not throw.
    void parallel_for(size_t count, const std::function<void(size_t)>& body) const;

private:
    OrtKernelContext* context_;
};

class Kernel {
public:
    virtual ~Kernel() = default;
    virtual void compute(Context& context) = 0;
};

// A kernel on a GPU: knows its device and queues launches on the stream that ONNX Runtime gives.
class GpuKernel : public Kernel {
protected:
    GpuKernel(const Node& node, Vendor vendor) : gpu_(Gpu::get(vendor, node.device_id())) {}
    void launch(Context& context, const Launch& launch) { gpu_.launch(context.stream(), launch); }
    // Queues one of several variants that compute the same: the tuned one, else variants.front(), the geometry's own
    // choice for this device; or the first that can be launched, if that one cannot. `launches(variant)` makes the launches
    // of one. Throws Error if none can.
    void run(Context& context, const std::string& key, const std::vector<std::string>& variants,
             const std::function<std::vector<Launch>(const std::string& variant)>& launches);
    Gpu& gpu_;
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
    std::unique_ptr<Kernel> (*make_cpu)(const Node&, Dtype);
    std::unique_ptr<Kernel> (*make_gpu)(const Node&, Dtype, Vendor);
    // On NVIDIA GPUs ONNX Runtime's own kernel is faster: registered there only if asked for by name (SDORT_OPS).
    bool slower_on_cuda = false;
};

constexpr const char* kMicrosoft = "com.microsoft";
constexpr const char* kSdort = "sdort";

// Every operator of the library; a new one is one line in operators.cpp.
const std::vector<const Operator*>& operators();

// Throws Error unless `condition`; the message says what was expected and what came.
inline void require(bool condition, const std::string& message) {
    if (!condition) throw Error(message);
}

}  // namespace sdort
