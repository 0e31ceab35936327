#include "operator.h"

#include <algorithm>
#include <map>
#include <numeric>

namespace sdort {

const OrtApi* ort = nullptr;

void raise(OrtStatus* status) {
    if (!status) return;
    const std::string message = ort->GetErrorMessage(status);
    ort->ReleaseStatus(status);
    throw Error(message);
}

namespace {

// True if the attribute was there; ONNX Runtime tells absence by a status.
bool found(OrtStatus* status) {
    if (!status) return true;
    ort->ReleaseStatus(status);
    return false;
}

template <class T>
T fallback_or_throw(const std::optional<T>& fallback, const char* attribute) {
    require(fallback.has_value(), std::string("attribute ") + attribute + " is missing");
    return *fallback;
}

// A map, so that the order in which the operators' files are linked makes no difference.
auto& registered() {
    static std::map<std::pair<std::string, std::string>, Operator> all;
    return all;
}

}  // namespace

Registration::Registration(Operator op) { registered().emplace(std::pair(op.domain, op.name), std::move(op)); }

const std::vector<const Operator*>& operators() {
    static const std::vector<const Operator*> all = [] {
        std::vector<const Operator*> found;
        for (const auto& [name, op] : registered()) found.push_back(&op);
        return found;
    }();
    return all;
}

std::string to_string(const Shape& shape) {
    std::string text = "(";
    for (size_t i = 0; i < shape.size(); ++i) text += (i ? ", " : "") + std::to_string(shape[i]);
    return text + ")";
}

int64_t element_count(const Shape& shape) {
    // First, as dimensions beside a zero may be of any size.
    if (std::find(shape.begin(), shape.end(), 0) != shape.end()) return 0;
    return std::accumulate(shape.begin(), shape.end(), int64_t{1}, std::multiplies<>());
}

std::string Node::name() const {
    size_t size = 0;
    if (!found(ort->KernelInfo_GetNodeName(info_, nullptr, &size)) || size == 0) return "";
    std::string text(size, '\0');
    raise(ort->KernelInfo_GetNodeName(info_, text.data(), &size));
    text.resize(size - 1);
    return text;
}

int64_t Node::integer(const char* attribute, std::optional<int64_t> fallback) const {
    int64_t value = 0;
    return found(ort->KernelInfoGetAttribute_int64(info_, attribute, &value)) ? value
                                                                              : fallback_or_throw(fallback, attribute);
}

float Node::real(const char* attribute, std::optional<float> fallback) const {
    float value = 0;
    return found(ort->KernelInfoGetAttribute_float(info_, attribute, &value)) ? value
                                                                              : fallback_or_throw(fallback, attribute);
}

std::string Node::string(const char* attribute, std::optional<std::string> fallback) const {
    size_t size = 0;
    if (!found(ort->KernelInfoGetAttribute_string(info_, attribute, nullptr, &size)))
        return fallback_or_throw(fallback, attribute);
    std::string text(size, '\0');
    raise(ort->KernelInfoGetAttribute_string(info_, attribute, text.data(), &size));
    text.resize(size ? size - 1 : 0);
    return text;
}

std::vector<int64_t> Node::integers(const char* attribute, std::vector<int64_t> fallback) const {
    size_t size = 0;
    if (!found(ort->KernelInfoGetAttributeArray_int64(info_, attribute, nullptr, &size))) return fallback;
    std::vector<int64_t> values(size);
    raise(ort->KernelInfoGetAttributeArray_int64(info_, attribute, values.data(), &size));
    return values;
}

bool Node::has_output(size_t index) const {
    size_t count = 0, size = 0;
    raise(ort->KernelInfo_GetOutputCount(info_, &count));
    if (index >= count) return false;
    raise(ort->KernelInfo_GetOutputName(info_, index, nullptr, &size));
    return size > 1;  // a name and its end
}

int Node::device_id() const {
    OrtAllocator* allocator = nullptr;
    raise(ort->KernelInfoGetAllocator(info_, OrtMemTypeDefault, &allocator));
    const OrtMemoryInfo* memory = nullptr;
    OrtStatus* status = ort->AllocatorGetInfo(allocator, &memory);
    int id = 0;
    if (!status) status = ort->MemoryInfoGetId(memory, &id);
    ort->ReleaseAllocator(allocator);
    raise(status);
    return id;
}

Workspace::Workspace(const Node& node) {
    raise(ort->KernelInfoGetAllocator(node.info(), OrtMemTypeDefault, &allocator_));
    if (OrtStatus* status = ort->AllocatorGetInfo(allocator_, &memory_)) {
        ort->ReleaseAllocator(allocator_);
        raise(status);
    }
}

Workspace::~Workspace() { ort->ReleaseAllocator(allocator_); }

void Workspace::with(const Context& context, size_t bytes, const std::function<void(void* memory)>& use) const {
    void* memory = nullptr;
    if (bytes) {
        // An arena without room throws. Here that becomes an error of the node; inside of the next function, which is
        // noexcept, it would end the process.
        allocator_->Free(allocator_, allocator_->Alloc(allocator_, bytes));
        // The arena notes the stream beside the memory: the allocator's own Alloc would not.
        raise(ort->KernelContext_GetScratchBuffer(context.get(), memory_, bytes, &memory));
    }
    const auto free = [this](void* p) { allocator_->Free(allocator_, p); };
    const std::unique_ptr<void, decltype(free)> owner(memory, free);
    use(memory);
}

Input Context::input(size_t index) const {
    Input input;
    if (index >= input_count()) return input;
    const OrtValue* value = nullptr;
    raise(ort->KernelContext_GetInput(context_, index, &value));
    if (!value) return input;
    OrtTensorTypeAndShapeInfo* info = nullptr;
    raise(ort->GetTensorTypeAndShape(value, &info));
    size_t rank = 0;
    OrtStatus* status = ort->GetDimensionsCount(info, &rank);
    input.shape.resize(rank);
    if (!status) status = ort->GetDimensions(info, input.shape.data(), rank);
    ort->ReleaseTensorTypeAndShapeInfo(info);
    raise(status);
    void* data = nullptr;
    raise(ort->GetTensorMutableData(const_cast<OrtValue*>(value), &data));
    // An empty tensor may have no memory, and is not an absent one.
    static const char nothing = 0;
    input.data = data ? data : &nothing;
    return input;
}

size_t Context::input_count() const {
    size_t count = 0;
    raise(ort->KernelContext_GetInputCount(context_, &count));
    return count;
}

void* Context::output(size_t index, const Shape& shape) {
    size_t count = 0;
    raise(ort->KernelContext_GetOutputCount(context_, &count));
    if (index >= count) return nullptr;
    OrtValue* value = nullptr;
    raise(ort->KernelContext_GetOutput(context_, index, shape.data(), shape.size(), &value));
    if (!value) return nullptr;
    void* data = nullptr;
    raise(ort->GetTensorMutableData(value, &data));
    return data;
}

void Context::invoke(const OrtOp* op, const OrtValue* const* inputs, int input_count, OrtValue* const* outputs,
                     int output_count) const {
    raise(ort->InvokeOp(context_, op, inputs, input_count, outputs, output_count));
}

void* Context::stream() const {
    void* stream = nullptr;
    raise(ort->KernelContext_GetGPUComputeStream(context_, &stream));
    return stream;
}

void Context::parallel_for(size_t count, const std::function<void(size_t)>& body) const {
    if (count == 0) return;
    const auto call = [](void* data, size_t i) { (*static_cast<const std::function<void(size_t)>*>(data))(i); };
    raise(ort->KernelContext_ParallelFor(context_, call, count, 0, const_cast<std::function<void(size_t)>*>(&body)));
}

}  // namespace sdort
