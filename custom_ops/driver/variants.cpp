#include "variants.h"

#include <algorithm>
#include <iostream>
#include <mutex>
#include <optional>

#include "error.h"
#include "tuning.h"

namespace sdort {
namespace {

// Once a process: every launch would say so.
void tell_of_less_room(const std::string& key, const Device& device) {
    static std::once_flag told;
    std::call_once(told, [&] {
        std::cerr << "warning: sdort's operators: this " << device.architecture << " has less room for blocks than "
                  << device.compute_units << " units of its kind (" << key << "); a slower form takes less" << std::endl;
    });
}

}  // namespace

void run_variant(Gpu& gpu, void* stream, const std::string& key, const std::vector<std::string>& variants,
                 const std::function<std::vector<Launch>(const std::string& variant)>& launches) {
    const std::string& architecture = gpu.device().architecture;
    const auto fitting = [&](const std::string& variant) -> std::optional<std::vector<Launch>> {
        std::vector<Launch> all = launches(variant);
        if (!std::all_of(all.begin(), all.end(), [&](const Launch& launch) { return gpu.fits(launch); })) return {};
        return all;
    };
    if (should_tune(architecture, key)) {
        std::pair<double, std::string> best{1e30, variants.front()};
        for (const std::string& variant : variants)
            if (const auto all = fitting(variant)) best = std::min(best, {gpu.time(stream, *all), variant});
        record(architecture, key, best.second, best.first);
    }
    auto all = fitting(tuned(architecture, key, variants).value_or(variants.front()));
    if (!all) tell_of_less_room(key, gpu.device());
    for (size_t i = 0; !all && i < variants.size(); ++i) all = fitting(variants[i]);
    if (!all) throw Error("no variant of " + key + " can be launched on this " + architecture);
    for (const Launch& launch : *all) gpu.launch(stream, launch);
}

}  // namespace sdort
