// What tests ask of GroupNorm's geometry beyond what they ask of every operator (simulated/simulated.cpp).
#include "geometry.h"

using namespace sdort;

// "threads rows kept blocks shared_bytes" of each instance of the fast kernel, as the geometry believes them to be.
extern "C" const char* simulated_group_norm_instances() {
    static std::string text;
    text.clear();
    for (const group_norm::Instance& i : group_norm::kInstances)
        text += std::to_string(i.threads) + " " + std::to_string(i.rows) + " " + std::to_string(i.kept) + " " +
                std::to_string(i.blocks) + " " + std::to_string(i.shared_bytes) + "\n";
    return text.c_str();
}

extern "C" size_t simulated_group_norm_workspace(const group_norm::Problem* problem, int half, const char* architecture,
                                                 int compute_units) {
    const Dtype dtype = half ? Dtype::kFloat16 : Dtype::kFloat32;
    const bool nvidia = std::string(architecture).rfind("sm_", 0) == 0;
    const Device device{.architecture = architecture, .compute_units = compute_units, .cooperative = nvidia};
    return group_norm::workspace_bytes(*problem, device, group_norm::plans(*problem, dtype, device));
}
