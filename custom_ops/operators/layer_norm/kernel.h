#pragma once

#include "layer_norm.h"
#include "rows/normalize.h"

namespace sdort::layer_norm {

using rows::normalize_held, rows::normalize_wide;

SDORT_HELD_KERNELS(layer_norm, Args, normalize_held, normalize_wide)

}  // namespace sdort::layer_norm
