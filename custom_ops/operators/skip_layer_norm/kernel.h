#pragma once

#include "skip_layer_norm.h"
#include "rows/normalize.h"

namespace sdort::skip_layer_norm {

using rows::normalize_held, rows::normalize_wide;

SDORT_HELD_KERNELS(skip_layer_norm, Args, normalize_held, normalize_wide)

}  // namespace sdort::skip_layer_norm
