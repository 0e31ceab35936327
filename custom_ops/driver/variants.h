// Which of several variants that compute the same is launched.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "gpu.h"

namespace sdort {

// Queues one of the variants: the tuned one, else variants.front(), the geometry's own choice for this device; or the first
// that can be launched, if that one cannot. `launches(variant)` makes the launches of one. Throws Error if none can.
void run_variant(Gpu& gpu, void* stream, const std::string& key, const std::vector<std::string>& variants,
                 const std::function<std::vector<Launch>(const std::string& variant)>& launches);

}  // namespace sdort
