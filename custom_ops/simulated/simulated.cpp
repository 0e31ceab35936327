#include "simulated.h"

#include <functional>
#include <map>

#include "driver/error.h"

extern "C" int sdort_body_launch(const char* name, const unsigned grid[3], const unsigned block[3], unsigned lds_bytes,
                                 const void* args, size_t args_size);
extern "C" const char* sdort_body_error();

namespace sdort {
namespace {

auto& operators() {
    static std::map<std::string, Simulated> all;
    return all;
}

std::string last_error;

const Simulated& operator_of(const std::string& name, size_t problem_bytes) {
    const auto found = operators().find(name);
    if (found == operators().end()) throw Error("no operator is named " + name);
    if (found->second.problem_bytes != problem_bytes)
        throw Error("a problem of " + name + " has " + std::to_string(found->second.problem_bytes) + " bytes, not " +
                    std::to_string(problem_bytes));
    return found->second;
}

Dtype dtype_of(int half) { return half ? Dtype::kFloat16 : Dtype::kFloat32; }

Device device_of(const char* architecture, int compute_units, int wave) {
    const std::string name = architecture;
    return {name, compute_units, wave, name.rfind("sm_", 0) == 0, name == "sm_90"};
}

// Null where `make` throws, whose reason is then in simulated_error().
const char* text_of(const std::function<std::string()>& make) {
    static std::string text;
    try {
        text = make();
        return text.c_str();
    } catch (const std::exception& error) {
        last_error = error.what();
        return nullptr;
    }
}

void run(const Launch& launch) {
    const unsigned grid[3] = {launch.grid[0], launch.grid[1], 1}, block[3] = {launch.threads, 1, 1};
    if (sdort_body_launch(launch.kernel.c_str(), grid, block, launch.shared_bytes, launch.args.data(), launch.args_size))
        throw Error(sdort_body_error());
}

}  // namespace

bool add_simulated(const std::string& name, const Simulated& simulated) { return operators().emplace(name, simulated).second; }

}  // namespace sdort

using namespace sdort;

extern "C" const char* simulated_error() { return last_error.c_str(); }

// One operator a line.
extern "C" const char* simulated_operators() {
    return text_of([] {
        std::string text;
        for (const auto& [name, simulated] : operators()) text += name + "\n";
        return text;
    });
}

// The variants that are legal for the problem, one a line, the geometry's own choice first. Null is an error, as below.
extern "C" const char* simulated_variants(const char* name, const void* problem, size_t problem_bytes, int half,
                                          const char* architecture, int compute_units, int wave) {
    return text_of([&] {
        std::string text;
        const Simulated& op = operator_of(name, problem_bytes);
        for (const std::string& variant : op.variants(problem, dtype_of(half), device_of(architecture, compute_units, wave)))
            text += variant + "\n";
        return text;
    });
}

// "kernel blocks blocks_y threads cooperative" of a variant, one line a launch.
extern "C" const char* simulated_launches(const char* name, const void* problem, size_t problem_bytes, int half,
                                          const char* architecture, int compute_units, int wave, const char* variant) {
    return text_of([&] {
        std::string text;
        const Device device = device_of(architecture, compute_units, wave);
        for (const Launch& launch : operator_of(name, problem_bytes).launches(problem, dtype_of(half), device, variant))
            text += launch.kernel + " " + std::to_string(launch.grid[0]) + " " + std::to_string(launch.grid[1]) + " " +
                    std::to_string(launch.threads) + (launch.cooperative ? " 1\n" : " 0\n");
        return text;
    });
}

// Runs a variant's launches in order. 0, or 1 with the reason in simulated_error().
extern "C" int simulate(const char* name, const void* problem, size_t problem_bytes, int half, const char* architecture,
                        int compute_units, int wave, const char* variant) {
    const Device device = device_of(architecture, compute_units, wave);
    return text_of([&] {
               for (const Launch& launch : operator_of(name, problem_bytes).launches(problem, dtype_of(half), device, variant))
                   run(launch);
               return std::string();
           }) == nullptr;
}
