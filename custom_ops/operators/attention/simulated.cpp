// What tests ask of attention beyond what they ask of every operator (simulated/simulated.cpp).
#include "geometry.h"

using namespace sdort;

// Bytes of the workspace that any variant needs.
extern "C" int64_t simulated_attention_workspace(const attention::Problem* problem, int half, const char* architecture,
                                                 int compute_units) {
    const Device device{.architecture = architecture, .compute_units = compute_units};
    return attention::workspace_bytes(*problem, half ? Dtype::kFloat16 : Dtype::kFloat32, device);
}
