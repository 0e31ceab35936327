// Attention on the CPU: tiles of keys pass a tile of queries, whose largest score and sum are carried along, so scores never
// leave the cache. float32 arithmetic on float32 or float16 tensors that lie anywhere (attention.h).
#pragma once

#include <cstddef>
#include <cstdint>

#include "driver/launch.h"
#include "attention.h"

namespace sdort::cpu {

// Queries of one head that one task computes.
int64_t attention_queries(const attention::Problem& problem);

// Task i of batches * heads * ceil(queries / attention_queries).
void attention(const attention::Problem& problem, Dtype dtype, size_t task);

}  // namespace sdort::cpu
