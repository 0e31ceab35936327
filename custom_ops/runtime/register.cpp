// RegisterCustomOps: what ONNX Runtime calls when a session registers this library.
//
// SDORT_OPS narrows or widens what is overridden: a comma-separated list of operator names, "all" or "none".
// Without it, everything but what ONNX Runtime's own kernels do faster on that provider.
//
// SDORT_OPS_PROVIDER says which provider the session is for: cpu, rocm or cuda; without it, the GPU's if there is one.
// It matters because registering an operator for any provider gives it a schema that ONNX Runtime's own kernels of that
// name do not fit: where a GPU keeps ONNX Runtime's kernel, the operator may not be registered for the CPU either.
#include <cstdlib>
#include <deque>
#include <iostream>
#include <mutex>
#include <set>
#include <sstream>

#include "driver/shared_library.h"
#include "operator.h"

namespace sdort {
namespace {

enum class Provider { kCpu, kRocm, kCuda };

const char* provider_name(Provider provider) {
    switch (provider) {
        case Provider::kRocm: return "ROCMExecutionProvider";
        case Provider::kCuda: return "CUDAExecutionProvider";
        default: return "CPUExecutionProvider";
    }
}

// One operator for one dtype on one provider. ONNX Runtime hands `this` back to each of its callbacks.
struct Entry : OrtCustomOp {
    const Operator* op;
    Dtype dtype;
    Provider provider;
};

const Entry& entry(const OrtCustomOp* op) { return *static_cast<const Entry*>(op); }

ONNXTensorElementDataType type_of(const Entry& entry, const Slot& slot) {
    if (slot.fixed) return *slot.fixed;
    return entry.dtype == Dtype::kFloat16 ? ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT16 : ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT;
}

OrtCustomOpInputOutputCharacteristic characteristic(const Slot& slot) {
    return slot.optional ? INPUT_OUTPUT_OPTIONAL : INPUT_OUTPUT_REQUIRED;
}

struct Instance {
    std::unique_ptr<Kernel> kernel;
    std::string label;  // "GroupNorm node 'unet/...'": what an error starts with
};

OrtStatus* failure(const std::string& label, const std::exception& error) {
    return ort->CreateStatus(ORT_FAIL, (label + ": " + error.what()).c_str());
}

OrtStatus* create_kernel(const OrtCustomOp* op, const OrtApi*, const OrtKernelInfo* info, void** kernel) noexcept {
    const Entry& self = entry(op);
    std::string label = self.op->name;
    try {
        const Node node(info);
        label += " node '" + node.name() + "'";
        auto instance = std::make_unique<Instance>();
        instance->label = label;
        instance->kernel = self.provider == Provider::kCpu
                               ? self.op->make_cpu(node, self.dtype)
                               : self.op->make_gpu(node, self.dtype,
                                                   self.provider == Provider::kRocm ? Vendor::kHip : Vendor::kCuda);
        *kernel = instance.release();
        return nullptr;
    } catch (const std::exception& error) {
        return failure(label, error);
    }
}

OrtStatus* compute(void* kernel, OrtKernelContext* context) noexcept {
    Instance& instance = *static_cast<Instance*>(kernel);
    try {
        Context wrapped(context);
        instance.kernel->compute(wrapped);
        return nullptr;
    } catch (const std::exception& error) {
        return failure(instance.label, error);
    }
}

Entry make_entry(const Operator& op, Dtype dtype, Provider provider) {
    Entry e{};
    e.op = &op;
    e.dtype = dtype;
    e.provider = provider;
    e.version = ORT_API_VERSION;
    e.GetName = [](const OrtCustomOp* op) { return entry(op).op->name; };
    e.GetExecutionProviderType = [](const OrtCustomOp* op) { return provider_name(entry(op).provider); };
    e.GetInputType = [](const OrtCustomOp* op, size_t i) { return type_of(entry(op), entry(op).op->inputs[i]); };
    e.GetInputTypeCount = [](const OrtCustomOp* op) { return entry(op).op->inputs.size(); };
    e.GetOutputType = [](const OrtCustomOp* op, size_t i) { return type_of(entry(op), entry(op).op->outputs[i]); };
    e.GetOutputTypeCount = [](const OrtCustomOp* op) { return entry(op).op->outputs.size(); };
    e.GetInputCharacteristic = [](const OrtCustomOp* op, size_t i) { return characteristic(entry(op).op->inputs[i]); };
    e.GetOutputCharacteristic = [](const OrtCustomOp* op, size_t i) { return characteristic(entry(op).op->outputs[i]); };
    e.GetInputMemoryType = [](const OrtCustomOp*, size_t) { return OrtMemTypeDefault; };
    e.GetVariadicInputMinArity = [](const OrtCustomOp*) { return 0; };
    e.GetVariadicInputHomogeneity = [](const OrtCustomOp*) { return 0; };
    e.GetVariadicOutputMinArity = [](const OrtCustomOp*) { return 0; };
    e.GetVariadicOutputHomogeneity = [](const OrtCustomOp*) { return 0; };
    e.CreateKernelV2 = create_kernel;
    e.KernelComputeV2 = compute;
    e.KernelDestroy = [](void* kernel) { delete static_cast<Instance*>(kernel); };
    e.GetStartVersion = [](const OrtCustomOp*) { return 1; };
    e.GetEndVersion = [](const OrtCustomOp*) { return INT32_MAX; };
    return e;
}

std::optional<std::set<std::string>> asked_for() {
    const char* text = std::getenv("SDORT_OPS");
    if (!text) return {};
    std::set<std::string> names;
    std::stringstream stream(text);
    for (std::string name; std::getline(stream, name, ',');)
        if (!name.empty()) names.insert(name);
    return names;
}

bool wanted(const Operator& op, Provider provider, const std::optional<std::set<std::string>>& names) {
    if (!(provider == Provider::kCpu ? op.make_cpu != nullptr : op.make_gpu != nullptr)) return false;
    if (names) return names->count("all") || names->count(op.name);
    return !(provider == Provider::kCuda && op.slower_on_cuda);
}

bool available(const char* provider) {
    char** names = nullptr;
    int count = 0;
    if (OrtStatus* status = ort->GetAvailableProviders(&names, &count)) {
        ort->ReleaseStatus(status);
        return false;
    }
    bool found = false;
    for (int i = 0; i < count; ++i) found |= std::string(names[i]) == provider;
    if (OrtStatus* status = ort->ReleaseAvailableProviders(names, count)) ort->ReleaseStatus(status);
    return found;
}

// Our kernels override ONNX Runtime's only where every device has a code object: later there is no way back.
bool serves(Vendor vendor) {
    const std::vector<std::string> devices = visible_architectures(vendor);
    for (const std::string& device : devices) {
        if (find_code_object(vendor, device)) continue;
        static std::once_flag once;
        std::call_once(once, [&] {
            std::cerr << "warning: sdort's operators have no code object for " << device << " (there are: "
                      << embedded_architectures(vendor) << "); ONNX Runtime's own kernels run instead. Build them: "
                      << "sdort ops build --arch " << device << "\n";
        });
        return false;
    }
    return !devices.empty();
}

// The providers of the session, the one that the nodes should go to first.
std::vector<Provider> providers() {
    const char* asked = std::getenv("SDORT_OPS_PROVIDER");
    const std::string wanted = asked ? asked : "";
    const auto may_be = [&](Provider provider, Vendor vendor, const char* name) {
        return (wanted.empty() || wanted == name) && available(provider_name(provider)) && serves(vendor);
    };
    if (may_be(Provider::kRocm, Vendor::kHip, "rocm")) return {Provider::kRocm, Provider::kCpu};
    if (may_be(Provider::kCuda, Vendor::kCuda, "cuda")) return {Provider::kCuda, Provider::kCpu};
    // The GPU of a session that is meant for one keeps all of ONNX Runtime's kernels.
    if (wanted == "rocm" || wanted == "cuda") return {};
    return {Provider::kCpu};
}

// Whether a session may be on a GPU that nothing here serves. There ONNX's own operators, which any model has, keep the
// schema that its kernels fit.
bool other_gpu() {
    const auto here = [](Provider provider, Vendor vendor) {
        return available(provider_name(provider)) && !visible_architectures(vendor).empty();
    };
    return !std::getenv("SDORT_OPS_PROVIDER") && (here(Provider::kRocm, Vendor::kHip) || here(Provider::kCuda, Vendor::kCuda));
}

// The domains live as long as the process: sessions point into them.
struct Domains {
    std::deque<Entry> entries;
    std::vector<OrtCustomOpDomain*> domains;
};

OrtStatus* build(Domains& all) {
    const auto names = asked_for();
    const std::vector<Provider> here = providers();
    const bool on_cpu = !here.empty() && here.front() == Provider::kCpu;
    for (const char* domain : {kOnnx, kMicrosoft, kSdort}) {
        if (domain == kOnnx && on_cpu && other_gpu()) continue;
        OrtCustomOpDomain* created = nullptr;
        if (OrtStatus* status = ort->CreateCustomOpDomain(domain, &created)) return status;
        size_t count = 0;
        for (const Operator* op : operators()) {
            if (op->domain != std::string(domain) || here.empty() || !wanted(*op, here.front(), names)) continue;
            for (const Provider provider : here) {
                if (!wanted(*op, provider, names)) continue;
                for (const Dtype dtype : {Dtype::kFloat32, Dtype::kFloat16}) {
                    all.entries.push_back(make_entry(*op, dtype, provider));
                    if (OrtStatus* status = ort->CustomOpDomain_Add(created, &all.entries.back())) return status;
                    count += 1;
                }
            }
        }
        if (count) all.domains.push_back(created);
    }
    return nullptr;
}

OrtStatus* register_operators(OrtSessionOptions* options) {
    static std::mutex mutex;
    static auto* all = new Domains;
    const std::lock_guard lock(mutex);
    // Made anew for every session: SDORT_OPS may have changed. What earlier sessions point to stays.
    all->domains.clear();
    if (OrtStatus* status = build(*all)) return status;
    for (OrtCustomOpDomain* domain : all->domains)
        if (OrtStatus* status = ort->AddCustomOpDomain(options, domain)) return status;
    return nullptr;
}

}  // namespace
}  // namespace sdort

SDORT_EXPORT OrtStatus* RegisterCustomOps(OrtSessionOptions* options, const OrtApiBase* base) {
    using namespace sdort;
    if (!ort) ort = base->GetApi(ORT_API_VERSION);
    if (!ort) {
        // The first API has this function in every release.
        const std::string text = std::string("sdort's operators need onnxruntime 1.21 or later, this is ") + base->GetVersionString();
        return base->GetApi(1)->CreateStatus(ORT_FAIL, text.c_str());
    }
    try {
        return register_operators(options);
    } catch (const std::exception& error) {
        return ort->CreateStatus(ORT_FAIL, error.what());
    }
}
