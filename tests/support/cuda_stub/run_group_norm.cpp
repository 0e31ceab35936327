// Runs GroupNorm, 2 x 64 x 64 x 320 in fp16, twice, as the library's operator does, with ONNX Runtime's answers made up here.
// Prints the errors; ends with 0 all the same.
#include <cstdio>
#include <string>

#include "operators/group_norm/geometry.h"
#include "runtime/operator.h"

extern "C" const char sdort_shipped_table[] = "", sdort_shipped_table_end[] = "";

namespace sdort {

static const unsigned char nothing[1] = {};
extern const CodeObject kCodeObjects[] = {{"cuda", "sm_90", nothing, nothing + 1}};
extern const size_t kCodeObjectCount = 1;

namespace {

constexpr uintptr_t kX = 4096, kStream = 64;

class OnGpu : public GpuKernel {
public:
    explicit OnGpu(const Node& node) : GpuKernel(node, Vendor::kCuda) {
        for (const std::string& kernel : group_norm::kernels(Dtype::kFloat16, gpu_.device())) gpu_.prepare(kernel);
    }

    void compute(Context& context) override {
        group_norm::Problem p{};
        p.x = reinterpret_cast<const void*>(kX);
        p.images = 2;
        p.hw = 64 * 64;
        p.channels = p.x_channels = 320;
        p.groups = 32;
        const Device& device = gpu_.device();
        const std::vector<group_norm::Plan> plans = group_norm::plans(p, Dtype::kFloat16, device);
        run_variant(gpu_, context.stream(), group_norm::key(p, Dtype::kFloat16), group_norm::variants(plans),
            [&](const std::string& variant) { return group_norm::launches(p, Dtype::kFloat16, device, plans, variant); });
    }
};

// A node on device 0, which runs on stream kStream.
OrtApi made_up() {
    OrtApi api{};
    api.KernelInfoGetAllocator = [](auto...) noexcept -> OrtStatus* { return nullptr; };
    api.AllocatorGetInfo = [](auto...) noexcept -> OrtStatus* { return nullptr; };
    api.MemoryInfoGetId = [](const OrtMemoryInfo*, int* id) noexcept -> OrtStatus* { return *id = 0, nullptr; };
    api.ReleaseAllocator = [](OrtAllocator*) {};
    api.KernelContext_GetGPUComputeStream = [](const OrtKernelContext*, void** stream) noexcept -> OrtStatus* {
        *stream = reinterpret_cast<void*>(kStream);
        return nullptr;
    };
    return api;
}

}  // namespace
}  // namespace sdort

int main() {
    using namespace sdort;
    static const OrtApi api = made_up();
    ort = &api;
    OnGpu kernel(Node{nullptr});
    Context context(nullptr);
    for (int i = 0; i < 2; ++i) {
        try {
            kernel.compute(context);
        } catch (const Error& error) {
            std::printf("error: %s\n", error.what());
        }
    }
}
