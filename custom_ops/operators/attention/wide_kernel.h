// Attention of wide heads by matrix instructions: fp16, a head size that is a multiple of 32. Of such heads no registers hold
// the sums of a flash kernel, so it is two products, with the weights of a part of the queries in the workspace between them.
//
//   scores   S^T = K Q^T of 128 queries and 128 keys. What a wave has, a segment of 64 keys, becomes weights relative to the
//            segment's own largest score, rounded up to an integer power of two: shift. Stored are weights (fp16), shifts and
//            sums (float32).
//   values   O^T = V^T P^T of 64 queries and 128 columns. Weights are multiplied by 2^(shift - largest shift of the query),
//            which is exact, as they are read from shared memory; the sums likewise. No pass over the scores is softmax alone.
//
// Geometry    four waves, 2 x 2; contractions in steps of 32, whose tiles are 16 KiB (scores) and 12 KiB (values) of shared
//             memory: three in flight where copies are asynchronous, else one, with the next in registers. 16-byte units of a
//             row change places by the row's number, so that what is read or written together meets all banks.
// Roofline    4 * S * L * d flops a head (at S = L = 4096 and d = 512 34 GFLOP) and S * L exponentials, on matrix units; the
//             weights are 2 * S * L bytes that are written once and read d / 128 times, from L2 where the part is small.
// Measured    H100 80GB, 2026-11-23, fp16, one head of 512: 4096x4096 155 µs (221 TFLOP/s), 16384x16384 2428 µs; by
//             wide_wgmma_kernel.h 92 µs (374 TFLOP/s) and 1392 µs. Not measured on AMD hardware.
#pragma once

#include "stage.h"

namespace sdort::attention {

namespace wide {

constexpr int kStep = 32, kUnits = kStep / 8;  // of a contraction, halves and 16-byte units
constexpr int kStages = kAsyncCopies ? 3 : 1;
constexpr int kTile = kWideTile;                // of queries, keys or columns
constexpr int kQueries = kWideQueries;          // of a workgroup of `values`
constexpr float kLift = matrix::kSubnormals ? 0.0f : 6.0f;  // as in wave.h

// Unit `unit` of row `row`, of rows of one step, and of rows of one tile.
SDORT_INLINE int in_step(int row, int unit) { return row * kStep + (unit ^ (row / 2 % kUnits)) * 8; }
SDORT_INLINE int in_tile(int row, int unit) { return row * kTile + (unit ^ (row % 8)) * 8; }

SDORT_INLINE int at_most(int value, int last) { return value < last ? value : last; }

SDORT_INLINE const Quad* quad(const half* from) { return reinterpret_cast<const Quad*>(from); }
SDORT_INLINE Quad* quad(half* to) { return reinterpret_cast<Quad*>(to); }

// Rows of one step, as they are; from(row, unit) is where a unit comes from.
template <int Rows>
struct Stage {
    static constexpr int kEach = Rows * kUnits / kThreads;
    Quad held[kAsyncCopies ? 1 : kEach];

    // The thread's index is read again, or a compiler would keep the addresses of all rows in registers.
    template <class From>
    SDORT_INLINE void fetch(From from, half* to) {
        const int thread = thread_index_again(), unit = thread % kUnits;
#pragma unroll
        for (int i = 0; i < kEach; ++i) {
            const int row = thread / kUnits + i * (kThreads / kUnits);
            const Quad* const source = quad(from(row, unit));
            if constexpr (kAsyncCopies) copy_async(quad(to + in_step(row, unit)), source);
            else copy(held[i], *source);
        }
    }
    SDORT_INLINE void land(half* to) {
        if constexpr (!kAsyncCopies) {
            const int thread = thread_index_again(), unit = thread % kUnits;
#pragma unroll
            for (int i = 0; i < kEach; ++i) store_quad(quad(to + in_step(thread / kUnits + i * (kThreads / kUnits), unit)), held[i]);
        }
    }
};

// One step of keys of a tile of V's columns: as it is where the machine transposes, else with columns as rows.
template <bool Transposes>
struct ValueStage {
    static constexpr int kEach = kStep * (kTile / 8) / kThreads;

    template <class From>
    SDORT_INLINE void fetch(From from, half* to) {
#pragma unroll
        for (int i = 0; i < kEach; ++i) {
            const int key = thread_index() / (kTile / 8) + i * (kThreads / (kTile / 8)), unit = thread_index() % (kTile / 8);
            copy_async(quad(to + in_tile(key, unit)), quad(from(key, unit)));
        }
    }
    SDORT_INLINE void land(half*) {}
    SDORT_INLINE static matrix::Rows load(const half* tile, int column, int key) {
        return matrix::load_rows_transposed(
            [=](int k, int eight) { return tile + in_tile(key + k, column / 8 + eight); });
    }
};

// A thread has eight columns of two keys; lanes beside each other have other keys of the same columns, and write to one row.
template <>
struct ValueStage<false> {
    static constexpr int kPairs = kStep / 2, kEach = kPairs * (kTile / 8) / kThreads;
    Quad held[kEach][2];

    SDORT_INLINE static int pair() { return thread_index() % kPairs; }
    SDORT_INLINE static int unit(int i) { return thread_index() / kPairs + i * (kThreads / kPairs); }

    template <class From>
    SDORT_INLINE void fetch(From from, half*) {
#pragma unroll
        for (int i = 0; i < 2 * kEach; ++i) copy(held[i / 2][i % 2], *quad(from(2 * pair() + i % 2, unit(i / 2))));
    }
    SDORT_INLINE void land(half* to) {
#pragma unroll
        for (int i = 0; i < kEach; ++i) {
#pragma unroll
            for (int j = 0; j < 8; ++j) {
                const uint32_t first = held[i][0].words[j / 2], second = held[i][1].words[j / 2];
                const uint32_t word = j % 2 ? high_halves(first, second) : low_halves(first, second);
                half* const target = to + in_step(unit(i) * 8 + j, pair() / 4) + pair() % 4 * 2;
                *reinterpret_cast<uint32_t*>(target) = word;
            }
        }
    }
    SDORT_INLINE static matrix::Rows load(const half* tile, int column, int key) {
        return matrix::load_rows([=](int row, int eight) { return tile + in_step(column + row, key / 8 + eight); });
    }
};

// fetch(step, buffer) for every step, kStages - 1 of them ahead, land(buffer), and use(step, buffer) when all have landed.
template <int Halves, class Fetch, class Land, class Use>
SDORT_INLINE void each_step(half* buffers, int steps, Fetch fetch, Land land, Use use) {
    if constexpr (kAsyncCopies) {
#pragma unroll
        for (int i = 0; i < kStages - 1; ++i) {
            if (i < steps) fetch(i, buffers + i * Halves);
            commit_copies();
        }
        for (int i = 0, now = 0; i < steps; ++i, now = now + 1 < kStages ? now + 1 : 0) {
            wait_for_copies<kStages - 2>();
            block_barrier();
            const int next = now ? now - 1 : kStages - 1;
            if (i + kStages - 1 < steps) fetch(i + kStages - 1, buffers + next * Halves);
            commit_copies();
            use(i, buffers + now * Halves);
        }
    } else {
        fetch(0, buffers);
        for (int i = 0; i < steps; ++i) {
            block_barrier();
            land(buffers);
            block_barrier();
            if (i + 1 < steps) fetch(i + 1, buffers);
            use(i, buffers);
        }
    }
}

// Of a wave: sums of 16 * RowTiles rows and 16 * Tiles queries.
template <int RowTiles, int Tiles>
struct Sums {
    matrix::Sums values[RowTiles][Tiles];

    SDORT_INLINE void clear() {
#pragma unroll
        for (int i = 0; i < RowTiles * Tiles; ++i) values[i / Tiles][i % Tiles] = matrix::Sums{};
    }
    template <class Rows>
    SDORT_INLINE void add(const matrix::Columns (&columns)[Tiles], Rows rows) {
#pragma unroll
        for (int row_tile = 0; row_tile < RowTiles; ++row_tile) {
            const matrix::Rows operand = rows(row_tile);
#pragma unroll
            for (int tile = 0; tile < Tiles; ++tile) matrix::multiply(operand, columns[tile], values[row_tile][tile]);
            if (row_tile % 2) keep_order();
        }
    }
};

template <int Tiles>
SDORT_INLINE void load_queries(matrix::Columns (&columns)[Tiles], const half* rows, int first, int unit) {
#pragma unroll
    for (int tile = 0; tile < Tiles; ++tile)
        columns[tile] = matrix::as_columns(matrix::load_rows(
            [=](int row, int eight) { return rows + in_step(first + tile * 16 + row, unit + eight); }));
}

// The scores of a wave's queries, one segment, become weights in `tile`, with shifts and sums in the workspace.
template <class Scores>
SDORT_INLINE void weigh(const WideArgs& args, Scores& scores, int keys, int segment, int row, half* tile, int query, int column) {
    constexpr int kTiles = 4, kElements = matrix::kElements;
    if (keys < kWideSegment) {
#pragma unroll
        for (int i = 0; i < 4 * kTiles * kElements; ++i) {
            const int element = i % kElements, key_tile = i / kElements / kTiles;
            if (key_tile * 16 + matrix::row_of(element) >= keys)
                scores.values[key_tile][i / kElements % kTiles].values[element] = kNever;
        }
    }
#pragma unroll
    for (int t = 0; t < kTiles; ++t) {
        float top[matrix::kSlots], sum[matrix::kSlots];
#pragma unroll
        for (int slot = 0; slot < matrix::kSlots; ++slot) {
            top[slot] = kNever;
            sum[slot] = 0.0f;
        }
#pragma unroll
        for (int i = 0; i < 4 * kElements; ++i) {
            const float score = scores.values[i / kElements][t].values[i % kElements];
            top[matrix::slot_of(i % kElements)] = fmaxf(top[matrix::slot_of(i % kElements)], score);
        }
        float shift[matrix::kSlots];
#pragma unroll
        for (int slot = 0; slot < matrix::kSlots; ++slot) {
            top[slot] = matrix::over_column(top[slot], [](float a, float b) { return fmaxf(a, b); });
            shift[slot] = top[slot] > kNever ? round_up(top[slot] * args.scale) - kLift : 0.0f;
        }
#pragma unroll
        for (int i = 0; i < 4 * kElements; ++i) {
            const int slot = matrix::slot_of(i % kElements);
            float& score = scores.values[i / kElements][t].values[i % kElements];
            score = fast_exp2(fmaf(score, args.scale, -shift[slot]));
            sum[slot] += score;
        }
#pragma unroll
        for (int slot = 0; slot < matrix::kSlots; ++slot) {
            const float all = matrix::over_column(sum[slot], [](float a, float b) { return a + b; });
            const int at = segment * args.rows + row + t * 16 + matrix::column_of(slot);
            args.shifts[at] = top[slot] > kNever ? shift[slot] : kNever;
            args.sums[at] = all;
        }
#pragma unroll
        for (int key_tile = 0; key_tile < 4; ++key_tile)
            matrix::each_run(scores.values[key_tile][t], [&](int slot, int key, const uint32_t* run) {
                using Run = Pack<uint32_t, matrix::kRun / 2>;
                const int at = column + key_tile * 16 + key;
                Run pack;
#pragma unroll
                for (int i = 0; i < matrix::kRun / 2; ++i) pack[i] = run[i];
                *reinterpret_cast<Run*>(tile + in_tile(query + t * 16 + matrix::column_of(slot), at / 8) + at % 8) = pack;
            });
    }
}

SDORT_INLINE void scores(const WideArgs& args) {
    constexpr int kBuffer = 2 * kTile * kStep;  // halves: Q's rows, then K's
    constexpr int kHalves = kStages * kBuffer > kTile * kTile ? kStages * kBuffer : kTile * kTile;
    SDORT_SHARED(Quad, shared, kHalves / 8);
    half* const buffers = reinterpret_cast<half*>(shared);
    const int unit = args.first + block_index_y(), head = unit / args.tiles;
    const int query = unit % args.tiles * kTile, key = block_index() * kTile;
    const Head q = head_of(args.q, head / args.heads, head % args.heads);
    const Head k = head_of(args.k, head / args.heads, head % args.heads);
    const int wave = wave_of(thread_index()), wave_query = wave / 2 * 64, wave_key = wave % 2 * 64;
    Stage<kTile> q_stage, k_stage;
    Sums<4, 4> sums;
    sums.clear();
    each_step<kBuffer>(
        buffers, args.size / kStep,
        [&](int step, half* to) {
            q_stage.fetch([&](int row, int i) { return q.at(at_most(query + row, args.queries - 1), step * kStep + i * 8); }, to);
            k_stage.fetch([&](int row, int i) { return k.at(at_most(key + row, args.keys - 1), step * kStep + i * 8); },
                          to + kTile * kStep);
        },
        [&](half* to) {
            q_stage.land(to);
            k_stage.land(to + kTile * kStep);
        },
        [&](int, const half* from) {
#pragma unroll
            for (int part = 0; part < kStep / 16; ++part) {
                matrix::Columns columns[4];
                load_queries(columns, from, wave_query, part * 2);
                const half* const keys = from + kTile * kStep;
                sums.add(columns, [&](int tile) {
                    return matrix::load_rows(
                        [=](int row, int eight) { return keys + in_step(wave_key + tile * 16 + row, part * 2 + eight); });
                });
            }
        });
    block_barrier();  // the tiles have been read
    weigh(args, sums, args.keys - key - wave_key, (key + wave_key) / kWideSegment, block_index_y() * kTile + wave_query, buffers,
          wave_query, wave_key);
    block_barrier();
    half* const weights = static_cast<half*>(args.weights);
#pragma unroll 4
    for (int i = 0; i < kTile * kTile / 8 / kThreads; ++i) {
        const int at = thread_index() + i * kThreads, row = at / (kTile / 8), column = at % (kTile / 8);
        Quad value;
        copy(value, *quad(buffers + in_tile(row, column)));
        // Of the part's weights there are fewer than 2^31 (kWideBytes).
        store_quad(quad(weights + static_cast<uint32_t>((block_index_y() * kTile + row) * args.pitch + key + column * 8)), value);
    }
}

// Of the workgroup's queries, a thread each: what their weights of a segment are multiplied by, and the sums of the weights.
template <int Queries>
struct Factors {
    uint32_t* shared;  // of two segments, pairs of one float16
    const float* shifts;
    const float* sums;
    int rows;
    float largest, next_shift, next_sum, total;

    SDORT_INLINE bool mine() const { return thread_index() < Queries; }
    SDORT_INLINE void begin(int segments) {
        largest = kNever;
        total = 0.0f;
        if (!mine()) return;
#pragma unroll 16
        for (int i = 0; i < segments; ++i) largest = fmaxf(largest, shifts[i * rows + thread_index()]);
        look(0, segments);
    }
    SDORT_INLINE void look(int segment, int segments) {
        if (segment >= segments) return;
        next_shift = shifts[segment * rows + thread_index()];
        next_sum = sums[segment * rows + thread_index()];
    }
    // Of segments in their order.
    SDORT_INLINE void fetch(int segment, int segments) {
        if (!mine()) return;
        const float factor = fast_exp2(next_shift - largest);
        total = fmaf(next_sum, factor, total);
        shared[segment % 2 * Queries + thread_index()] = narrow_pair(factor, factor);
        look(segment + 1, segments);
    }
    SDORT_INLINE void apply(matrix::Columns& columns, int segment, int query) const {
        uint32_t factors[matrix::kSlots];
#pragma unroll
        for (int slot = 0; slot < matrix::kSlots; ++slot)
            factors[slot] = shared[segment % 2 * Queries + query + matrix::column_of(slot)];
        matrix::scale(columns, factors);
    }
};

SDORT_INLINE void values(const WideArgs& args) {
    constexpr int kTiles = kQueries / 32, kBuffer = (kQueries + kTile) * kStep;  // halves: weights, then V's columns
    SDORT_SHARED(Quad, shared, kStages * kBuffer / 8);
    SDORT_SHARED(uint32_t, factor_pairs, 2 * kQueries);
    SDORT_SHARED(float, totals, kQueries);
    half* const buffers = reinterpret_cast<half*>(shared);
    const int row = block_index_y() * kQueries, unit = args.first + row / kTile, head = unit / args.tiles;
    const int query = unit % args.tiles * kTile + row % kTile, column = block_index() * kTile;
    const Head v = head_of(args.v, head / args.heads, head % args.heads);
    const half* const weights = static_cast<const half*>(args.weights) + static_cast<int64_t>(row) * args.pitch;
    const int wave = wave_of(thread_index()), wave_query = wave / 2 * (kQueries / 2), wave_column = wave % 2 * 64;
    const int segments = args.pitch / kWideSegment;
    Factors<kQueries> factors{factor_pairs, args.shifts + row, args.sums + row, args.rows, 0, 0, 0, 0};
    factors.begin(segments);
    Stage<kQueries> weight_stage;
    ValueStage<matrix::kTransposes> value_stage;
    Sums<4, kTiles> sums;
    sums.clear();
    each_step<kBuffer>(
        buffers, args.pitch / kStep,
        [&](int step, half* to) {
            weight_stage.fetch(
                [&](int r, int i) {
                    return weights + (static_cast<uint32_t>(r) * static_cast<uint32_t>(args.pitch) + step * kStep + i * 8);
                },
                to);
            value_stage.fetch(
                [&](int k, int i) {
                    return v.at(at_most(step * kStep + k, args.keys - 1), at_most(column + i * 8, args.value_size - 8));
                },
                to + kQueries * kStep);
            if (step * kStep % kWideSegment == 0) factors.fetch(step * kStep / kWideSegment, segments);
        },
        [&](half* to) {
            weight_stage.land(to);
            value_stage.land(to + kQueries * kStep);
        },
        [&](int step, const half* from) {
#pragma unroll
            for (int part = 0; part < kStep / 16; ++part) {
                matrix::Columns columns[kTiles];
                load_queries(columns, from, wave_query, part * 2);
#pragma unroll
                for (int tile = 0; tile < kTiles; ++tile)
                    factors.apply(columns[tile], step * kStep / kWideSegment, wave_query + tile * 16);
                sums.add(columns, [&](int tile) {
                    return value_stage.load(from + kQueries * kStep, wave_column + tile * 16, part * 16);
                });
            }
        });
    if (factors.mine()) totals[thread_index()] = factors.total;
    block_barrier();
    const int64_t pitch = static_cast<int64_t>(args.heads) * args.value_size;
    half* const y = static_cast<half*>(args.y) + head / args.heads * args.queries * pitch + head % args.heads * args.value_size;
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile) {
        float share[matrix::kSlots];
#pragma unroll
        for (int slot = 0; slot < matrix::kSlots; ++slot)
            share[slot] = fast_rcp(totals[wave_query + tile * 16 + matrix::column_of(slot)]);
#pragma unroll
        for (int column_tile = 0; column_tile < 4; ++column_tile) {
            matrix::Sums& part = sums.values[column_tile][tile];
#pragma unroll
            for (int i = 0; i < matrix::kElements; ++i) part.values[i] *= share[matrix::slot_of(i)];
            matrix::each_run(part, [&](int slot, int r, const uint32_t* run) {
                using Run = Pack<uint32_t, matrix::kRun / 2>;
                const int at = query + wave_query + tile * 16 + matrix::column_of(slot);
                const int c = column + wave_column + column_tile * 16 + r;
                if (at >= args.queries || c >= args.value_size) return;
                Run pack;
#pragma unroll
                for (int i = 0; i < matrix::kRun / 2; ++i) pack[i] = run[i];
                *reinterpret_cast<Run*>(y + at * pitch + c) = pack;
            });
        }
    }
}

}  // namespace wide

SDORT_KERNEL_RESIDENT(attention_wide_scores_f16, kThreads, 2, WideArgs, wide::scores)
SDORT_KERNEL_RESIDENT(attention_wide_values_f16, kThreads, (kAsyncCopies ? 3 : 2), WideArgs, wide::values)

}  // namespace sdort::attention
