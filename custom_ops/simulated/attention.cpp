#include "kernels/attention_geometry.h"
#include "simulate.h"

using namespace sdort;

// `index` counts the variants that are legal for the problem; 2 if there is no such one.
extern "C" int simulate_attention(const attention::Problem* p, int half, const char* architecture, int compute_units, int wave,
                                  unsigned index) {
    const Device device{architecture, compute_units, wave};
    const Dtype dtype = half ? Dtype::kFloat16 : Dtype::kFloat32;
    const auto variants = attention::variants(*p, dtype, device);
    if (index >= variants.size()) return 2;
    return simulate([&] { return std::vector{attention::launch(*p, dtype, device, variants[index])}; });
}
