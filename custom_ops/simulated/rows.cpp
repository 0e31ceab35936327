#include "kernels/bias_split_gelu_geometry.h"
#include "kernels/skip_layer_norm_geometry.h"
#include "simulate.h"

using namespace sdort;

namespace {
Dtype dtype_of(int half) { return half ? Dtype::kFloat16 : Dtype::kFloat32; }
}  // namespace

// `index` counts the variants that are legal for the problem; 2 if there is no such one.
extern "C" int simulate_bias_split_gelu(const bias_split_gelu::Problem* p, int half, const char* architecture,
                                        int compute_units, int wave, unsigned index) {
    const Device device{architecture, compute_units, wave};
    const auto variants = bias_split_gelu::variants(*p, dtype_of(half), device);
    if (index >= variants.size()) return 2;
    return simulate([&] { return std::vector{bias_split_gelu::launch(*p, dtype_of(half), device, variants[index])}; });
}

extern "C" int simulate_skip_layer_norm(const skip_layer_norm::Problem* p, int half, const char* architecture,
                                        int compute_units, int wave, unsigned index) {
    const Device device{architecture, compute_units, wave};
    const auto variants = skip_layer_norm::variants(*p, dtype_of(half), device);
    if (index >= variants.size()) return 2;
    return simulate([&] { return std::vector{skip_layer_norm::launch(*p, dtype_of(half), device, variants[index])}; });
}
