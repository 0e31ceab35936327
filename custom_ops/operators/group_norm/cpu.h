// GroupNorm on the CPU, exact in two passes over chunks that stay in the cache. See group_norm.h for what it
// computes; every function exists for float32 and float16 tensors and may run on any thread.
#pragma once

#include <cstddef>

#include "geometry.h"

namespace sdort::cpu {

// Channels-last: an image is cut into chunks of rows, whose number depends on the shape alone, so that the result does
// not depend on the number of threads.
int64_t group_norm_chunks(const group_norm::Problem& problem);

// Chunk `task` of images * chunks: of each channel a value, the mean's distance to it, and the sum of squared distances
// to the mean: 3 * channels floats, to partials[task]; S to problem.sum, if it is wanted.
void group_norm_measure_f32(const group_norm::Problem& problem, size_t task, float* partials);
void group_norm_measure_f16(const group_norm::Problem& problem, size_t task, float* partials);

// One image: coefficients of each channel from all its partials; Y = (S - coefficients[0]) * [1] + [2], 3 * channels floats.
void group_norm_merge(const group_norm::Problem& problem, size_t image, const float* partials, float* coefficients);

// Chunk `task`: Y.
void group_norm_apply_f32(const group_norm::Problem& problem, size_t task, const float* coefficients);
void group_norm_apply_f16(const group_norm::Problem& problem, size_t task, const float* coefficients);

// (N, C, H*W) and X alone: group `task` of images * groups, from start to end.
void group_norm_planes_f32(const group_norm::Problem& problem, size_t task);
void group_norm_planes_f16(const group_norm::Problem& problem, size_t task);

}  // namespace sdort::cpu
