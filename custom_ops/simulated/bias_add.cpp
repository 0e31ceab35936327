#include "kernels/bias_add_geometry.h"
#include "simulate.h"

using namespace sdort;

extern "C" const char* simulated_error() { return simulation_error().c_str(); }

extern "C" int simulate_bias_add(const bias_add::Problem* problem, int half, const char* architecture, int compute_units,
                                 int wave, unsigned variant) {
    if (variant > 0) return 2;
    const Device device{architecture, compute_units, wave};
    return simulate([&] { return std::vector{bias_add::geometry(*problem, half ? Dtype::kFloat16 : Dtype::kFloat32, device)}; });
}
