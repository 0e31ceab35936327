// What one wave computes of attention: `Tiles` times 16 queries against `Step` keys at a time, all in registers.
//
// It computes S^T = K Q^T, turns the scores into weights where they are, and adds V^T P^T to O^T (device/matrix.h).
#pragma once

#include "stage.h"
#include "device/wave.h"

namespace sdort::attention {

// A lane's weights of a step may sum up to this, float16's largest number, before what they are relative to changes.
constexpr float kMost = 65504.0f;

// A score that they are relative to has the weight 2^kLift, by which all is divided in the end, as their sum has that factor
// too. Where a product takes subnormal weights for zero and the sum does not, what is lost are weights below 2^-20 of the
// largest, not below 2^-14: of 4096 keys at most 2^-8 of all weight, not 2^-2. 2^10 is left for larger scores to come:
// with less, more steps would be computed again.
constexpr float kLift = matrix::kSubnormals ? 0.0f : 6.0f;

template <int Size, int Step, int Tiles, class L>
struct Wave {
    using Rows = matrix::Rows;
    using Columns = matrix::Columns;
    using Sums = matrix::Sums;
    static constexpr int kSteps = (Size + 15) / 16;  // of 16 columns
    static constexpr int kLast = Size % 16 ? 8 : 16;  // columns of the last one
    static constexpr int kKeyTiles = Step / 16, kSlots = matrix::kSlots, kElements = matrix::kElements;
    static constexpr int kQueries = 16 * Tiles;

    Columns q[kSteps][Tiles];
    Sums s[kKeyTiles][Tiles];  // scores, then weights
    Sums y[kSteps][Tiles];
    float shift[Tiles][kSlots];  // what a query's scores, times the factor, are relative to
    float step_sums[Tiles][kSlots];  // of this lane's weights of the step
    float sums[Tiles][kSlots];       // of all before

    // A query beyond the last is the last one again; nobody stores it.
    SDORT_INLINE void begin(const Head& head, int query, int queries) {
#pragma unroll
        for (int tile = 0; tile < Tiles; ++tile) {
            const auto at = [&](int step) {
                return [=](int column, int eight) {
                    const int wanted = query + tile * 16 + column, row = wanted < queries ? wanted : queries - 1;
                    return head.at(row, step * 16 + eight * 8);
                };
            };
#pragma unroll
            for (int step = 0; step < kSteps - 1; ++step) q[step][tile] = matrix::load_columns(at(step));
            q[kSteps - 1][tile] = matrix::load_columns<kLast>(at(kSteps - 1));
#pragma unroll
            for (int step = 0; step < kSteps; ++step) y[step][tile] = Sums{};
#pragma unroll
            for (int slot = 0; slot < kSlots; ++slot) {
                shift[tile][slot] = kNever;
                sums[tile][slot] = 0.0f;
            }
        }
    }

    template <int Depth>
    SDORT_INLINE void score(const half* k, int key_tile, int step) {
        const Rows rows = matrix::load_rows<Depth, true>(
            [=](int row, int eight) { return k + (key_tile * 16 + row) * L::kPitch + step * 16 + eight * 8; });
#pragma unroll
        for (int tile = 0; tile < Tiles; ++tile) matrix::multiply<Depth>(rows, q[step][tile], s[key_tile][tile]);
    }

    SDORT_INLINE void score_all(const half* k) {
#pragma unroll
        for (int key_tile = 0; key_tile < kKeyTiles; ++key_tile) {
#pragma unroll
            for (int tile = 0; tile < Tiles; ++tile) s[key_tile][tile] = Sums{};
            keep_order();
#pragma unroll
            for (int step = 0; step < kSteps - 1; ++step) {
                score<16>(k, key_tile, step);
                if (step % matrix::kAhead == matrix::kAhead - 1) keep_order();
            }
            score<kLast>(k, key_tile, kSteps - 1);
        }
    }

    // Keys from `count` of the step on are not there.
    SDORT_INLINE void hide(int count) {
#pragma unroll
        for (int i = 0; i < kKeyTiles * Tiles * kElements; ++i) {
            const int element = i % kElements, key_tile = i / kElements / Tiles;
            float& score = s[key_tile][i / kElements % Tiles].values[element];
            if (key_tile * 16 + matrix::row_of(element) >= count) score = kNever;
        }
    }

    // Of this lane's scores.
    SDORT_INLINE float largest(int tile, int slot) const {
        float value = kNever;
#pragma unroll
        for (int i = 0; i < kKeyTiles * kElements; ++i)
            if (matrix::slot_of(i % kElements) == slot) value = fmaxf(value, s[i / kElements][tile].values[i % kElements]);
        return value;
    }

    SDORT_INLINE void scale(int tile, const float (&factors)[kSlots]) {
#pragma unroll
        for (int i = 0; i < kSteps * kElements; ++i)
            y[i / kElements][tile].values[i % kElements] *= factors[matrix::slot_of(i % kElements)];
    }

    // Makes the largest scores, with their weight, what all is relative to. `again` if there are sums that were not.
    SDORT_INLINE void set_shift(float factor, bool again) {
#pragma unroll
        for (int tile = 0; tile < Tiles; ++tile) {
            float correction[kSlots];
#pragma unroll
            for (int slot = 0; slot < kSlots; ++slot) {
                const float all = matrix::over_column(largest(tile, slot), [](float a, float b) { return fmaxf(a, b); });
                const float before = shift[tile][slot];
                shift[tile][slot] = fmaxf(before, fmaf(all, factor, -kLift));
                correction[slot] = fast_exp2(before - shift[tile][slot]);
                sums[tile][slot] *= correction[slot];
            }
            if (again) scale(tile, correction);
        }
    }

    SDORT_INLINE void weigh(float factor) {
#pragma unroll
        for (int i = 0; i < Tiles * kSlots; ++i) step_sums[i / kSlots][i % kSlots] = 0.0f;
#pragma unroll
        for (int i = 0; i < kKeyTiles * Tiles * kElements; ++i) {
            const int element = i % kElements, slot = matrix::slot_of(element), tile = i / kElements % Tiles;
            float& value = s[i / kElements / Tiles][tile].values[element];
            value = fast_exp2(fmaf(value, factor, -shift[tile][slot]));
            step_sums[tile][slot] += value;
        }
    }

    // Whether a weight may be too large for float16, in any lane.
    SDORT_INLINE bool beyond() const {
        bool any = false;
#pragma unroll
        for (int i = 0; i < Tiles * kSlots; ++i) any |= !(step_sums[i / kSlots][i % kSlots] <= kMost);
        return wave_any(any);
    }

    SDORT_INLINE void add_sums() {
#pragma unroll
        for (int i = 0; i < Tiles * kSlots; ++i) sums[i / kSlots][i % kSlots] += step_sums[i / kSlots][i % kSlots];
    }

    template <int Height>
    SDORT_INLINE void accumulate(const half* v, int key_tile, int step, const Columns (&weights)[Tiles]) {
        Rows rows;
        if constexpr (matrix::kTransposes) {
            rows = matrix::load_rows_transposed<Height>(
                [=](int key, int eight) { return v + (key_tile * 16 + key) * L::kPitch + step * 16 + eight * 8; });
        } else {
            rows = matrix::load_rows<16, true>([=](int row, int eight) { return v + L::value(step, row, key_tile, eight); });
        }
#pragma unroll
        for (int tile = 0; tile < Tiles; ++tile) matrix::multiply<16, Height>(rows, weights[tile], y[step][tile]);
    }

    SDORT_INLINE void accumulate_all(const half* v) {
#pragma unroll
        for (int key_tile = 0; key_tile < kKeyTiles; ++key_tile) {
            Columns weights[Tiles];
#pragma unroll
            for (int tile = 0; tile < Tiles; ++tile) weights[tile] = matrix::as_columns(s[key_tile][tile]);
            keep_order();
#pragma unroll
            for (int step = 0; step < kSteps - 1; ++step) {
                accumulate<16>(v, key_tile, step, weights);
                if (step % matrix::kAhead == matrix::kAhead - 1) keep_order();
            }
            accumulate<kLast>(v, key_tile, kSteps - 1, weights);
        }
    }

    template <int Height>
    SDORT_INLINE void store(half* y_head, uint32_t pitch, int query, int queries, int step, int tile) const {
        using Run = Pack<uint32_t, matrix::kRun / 2>;
        matrix::each_run<Height>(y[step][tile], [&](int slot, int row, const uint32_t* run) {
            const int index = query + tile * 16 + matrix::column_of(slot);
            if (index >= queries) return;
            Run pack;
#pragma unroll
            for (int i = 0; i < matrix::kRun / 2; ++i) pack[i] = run[i];
            *reinterpret_cast<Run*>(y_head + static_cast<uint32_t>(index) * pitch + step * 16 + row) = pack;
        });
    }

    SDORT_INLINE void end(const Args& args, int batch, int head, int query) {
        const uint32_t pitch = static_cast<uint32_t>(args.heads) * Size;
        half* const target = static_cast<half*>(args.y) + (static_cast<uint32_t>(batch * args.queries) * pitch + head * Size);
#pragma unroll
        for (int tile = 0; tile < Tiles; ++tile) {
            float share[kSlots];
#pragma unroll
            for (int slot = 0; slot < kSlots; ++slot)
                share[slot] = fast_rcp(matrix::over_column(sums[tile][slot], [](float a, float b) { return a + b; }));
            scale(tile, share);
#pragma unroll
            for (int step = 0; step < kSteps - 1; ++step) store<16>(target, pitch, query, args.queries, step, tile);
            store<kLast>(target, pitch, query, args.queries, kSteps - 1, tile);
        }
    }
};

}  // namespace sdort::attention
