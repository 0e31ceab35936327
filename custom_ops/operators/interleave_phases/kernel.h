#pragma once

#include "interleave_phases.h"
#include "rows/kernel.h"

namespace sdort::interleave_phases {

// Where a row (or column) of Y comes from: rows of P, and which half of its phases.
struct Source {
    uint32_t at;
    uint32_t phase;
};

// The `term`th of those whose sum a row is: one, or of the last row of an odd height three.
SDORT_INLINE Source source_of(uint32_t index, int term) {
    const uint32_t at = index / 2 + index % 2;
    return term == 0 ? Source{at, index % 2} : Source{at + term, 1};
}

SDORT_INLINE int terms(uint32_t index, uint32_t size) { return index % 2 == 0 && index + 1 == size ? 3 : 1; }

// N elements a vector, `Pixels` of a row in flight.
template <class T, int N, int Pixels>
SDORT_INLINE void body(const Args& args) {
    const uint32_t first = block_index_y() * static_cast<uint32_t>(rows::kThreads) + thread_index();
    const uint32_t column = first % args.columns, start = first / args.columns;
    if (start >= args.stride) return;
    const uint32_t image = block_index() / args.height, y = block_index() % args.height;
    const size_t channels = static_cast<size_t>(args.columns) * N;
    // Of an odd size P has one more row than of the next even one.
    const uint32_t grid_height = args.height / 2 + 1 + 2 * (args.height % 2), grid_width = args.image_width / 2 + 1 + 2 * (args.image_width % 2);
    const T* source = static_cast<const T*>(args.x) + image * (grid_height * channels * 4 * grid_width) + column * size_t{N};
    T* target = static_cast<T*>(args.y) + (static_cast<size_t>(block_index()) * args.image_width) * channels + column * size_t{N};
    float bias[N] = {};
    if (args.bias) load(static_cast<const T*>(args.bias) + column * size_t{N}, bias);
    const auto from = [&](Source row, Source pixel) {
        return source + (static_cast<size_t>(row.at * grid_width + pixel.at) * 4 + 2 * row.phase + pixel.phase) * channels;
    };
    const int row_terms = terms(y, args.height);
    for (uint32_t x = start; x < args.image_width; x += Pixels * args.stride) {
        Pack<T, N> packs[Pixels];
#pragma unroll
        for (int i = 0; i < Pixels; ++i) {
            // Past the end the last pixel is read again: a load that nobody waits for is cheaper than a branch.
            const uint32_t wanted = x + i * args.stride, last = args.image_width - 1;
            packs[i] = *reinterpret_cast<const Pack<T, N>*>(from(source_of(y, 0), source_of(wanted < last ? wanted : last, 0)));
        }
#pragma unroll
        for (int i = 0; i < Pixels; ++i) {
            const uint32_t here = x + i * args.stride;
            if (here >= args.image_width) break;
            float out[N];
#pragma unroll
            for (int k = 0; k < N; ++k) out[k] = widen(packs[i][k]) + bias[k];
            const int pixel_terms = terms(here, args.image_width);
            for (int term = 1; term < row_terms * pixel_terms; ++term) {
                float more[N];
                const int row = term / pixel_terms, pixel = term % pixel_terms;
                load(from(source_of(y, row), source_of(here, pixel)), more);
                const float sign = (row == 1) == (pixel == 1) ? 1.0f : -1.0f;
#pragma unroll
                for (int k = 0; k < N; ++k) out[k] += sign * more[k];
            }
            store(target + here * channels, out);
        }
    }
}

SDORT_ROW_KERNEL(interleave_phases, p2, Args, (body<T, kVector<T>, 2>))
SDORT_ROW_KERNEL(interleave_phases, p4, Args, (body<T, kVector<T>, 4>))
SDORT_ROW_KERNEL(interleave_phases, narrow, Args, (body<T, 1, 1>))

}  // namespace sdort::interleave_phases
