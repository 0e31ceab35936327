// What this library holds, for people and for `sdort ops list`: works without ONNX Runtime in the process.
#include "driver/shared_library.h"
#include "operator.h"

namespace sdort {
namespace {

std::string quoted(const std::string& text) { return "\"" + text + "\""; }

std::string list(const std::vector<std::string>& items) {
    std::string text = "[";
    for (size_t i = 0; i < items.size(); ++i) text += (i ? ", " : "") + items[i];
    return text + "]";
}

// Whose GPUs they are, as the providers of sdort name them: the build calls code by its platform.
std::string company(const std::string& platform) { return platform == "hip" ? "amd" : "nvidia"; }

// {"operators": [{"domain", "name", "cpu", "gpu", "by_default_on_cuda"}], "code_objects": [{"vendor", "architecture", "bytes"}]}
std::string describe() {
    const auto flag = [](bool value) { return value ? "true" : "false"; };
    std::vector<std::string> entries, objects;
    for (const Operator* op : operators())
        entries.push_back("{\"domain\": " + quoted(op->domain) + ", \"name\": " + quoted(op->name) + ", \"cpu\": " +
                          flag(op->make_cpu) + ", \"gpu\": " + flag(op->make_gpu) +
                          ", \"by_default_on_cuda\": " + flag(op->make_gpu && !op->slower_on_cuda) + "}");
    for (size_t i = 0; i < kCodeObjectCount; ++i) {
        const CodeObject& object = kCodeObjects[i];
        objects.push_back("{\"vendor\": " + quoted(company(object.vendor)) + ", \"architecture\": " + quoted(object.architecture) +
                          ", \"bytes\": " + std::to_string(object.end - object.begin) + "}");
    }
    return "{\"operators\": " + list(entries) + ", \"code_objects\": " + list(objects) + "}";
}

}  // namespace
}  // namespace sdort

SDORT_EXPORT const char* sdort_ops_describe() {
    static const std::string text = sdort::describe();
    return text.c_str();
}
