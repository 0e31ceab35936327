#include "kernels/group_norm_geometry.h"
#include "simulate.h"

using namespace sdort;

namespace {

Dtype dtype_of(int half) { return half ? Dtype::kFloat16 : Dtype::kFloat32; }

Device device_of(const char* architecture, int compute_units) {
    const bool nvidia = std::string(architecture).rfind("sm_", 0) == 0;
    return {.architecture = architecture, .compute_units = compute_units, .cooperative = nvidia};
}

std::vector<Launch> launches_of(const group_norm::Problem& problem, Dtype dtype, const Device& device, const char* variant) {
    return group_norm::launches(problem, dtype, device, group_norm::plans(problem, dtype, device), variant);
}

}  // namespace

// One variant a line, the shipped choice first.
extern "C" const char* simulated_group_norm_variants(const group_norm::Problem* problem, int half, const char* architecture,
                                                     int compute_units) {
    static std::string text;
    text.clear();
    const std::vector<group_norm::Plan> plans =
        group_norm::plans(*problem, dtype_of(half), device_of(architecture, compute_units));
    for (const std::string& name : group_norm::variants(plans))
        text += name + "\n";
    return text.c_str();
}

// "kernel blocks blocks_y threads cooperative" of a variant, one line a launch.
extern "C" const char* simulated_group_norm_launches(const group_norm::Problem* problem, int half, const char* architecture,
                                                     int compute_units, const char* variant) {
    static std::string text;
    text.clear();
    const Device device = device_of(architecture, compute_units);
    for (const Launch& launch : launches_of(*problem, dtype_of(half), device, variant))
        text += launch.kernel + " " + std::to_string(launch.grid[0]) + " " + std::to_string(launch.grid[1]) + " " +
                std::to_string(launch.threads) + (launch.cooperative ? " 1\n" : " 0\n");
    return text.c_str();
}

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
    const Device device = device_of(architecture, compute_units);
    return group_norm::workspace_bytes(*problem, device, group_norm::plans(*problem, dtype_of(half), device));
}

extern "C" int simulate_group_norm(const group_norm::Problem* problem, int half, const char* architecture,
                                   int compute_units, const char* variant) {
    const Device device = device_of(architecture, compute_units);
    return simulate([&] { return launches_of(*problem, dtype_of(half), device, variant); });
}
