// Attention of wide heads (wide_kernel.h) by a warpgroup's products: Hopper, a head size that is a multiple of 64.
//
//   scores   two warpgroups of 64 queries against 256 keys each; tiles of 64 of the contraction, 48 KiB, four in flight
//   values   two warpgroups of 64 queries and 128 columns each; tiles of 64 keys, a segment, 32 KiB, six in flight. Weights
//            pass through registers, where they are multiplied by their segment's factor
//
// What lies in the workspace is the same, so each may stand for its counterpart. A workgroup has a multiprocessor for itself.
#pragma once

#include "wgmma_stage.h"
#include "wide_kernel.h"

#if defined(SDORT_WGMMA)

namespace sdort::attention {

namespace wide_wgmma {

using namespace wgmma_stage;

constexpr int kQueries = kWideTile, kDepth = 64, kColumns = 128;
constexpr int kQueryBytes = kQueries * 128, kKeyBytes = kWgmmaKeys * 128, kValueBytes = kDepth * 128;  // of tiles
static_assert(kWgmmaScoresBytes == 1024 + kWgmmaScoresStages * (kQueryBytes + kKeyBytes));
static_assert(kWgmmaValuesBytes == 1024 + kWgmmaValuesStages * (kQueryBytes + 2 * kValueBytes));

// One segment's scores of a query, every fourth pair of them, become weights in its row of the tile.
SDORT_INLINE void weigh(const WideArgs& args, float (&sums)[128], int half_row, int segment, int keys, char* row, int number,
                        int at) {
    const int pair = lane_index() % 4 * 2;
    float top = kNever, sum = 0.0f;
#pragma unroll
    for (int i = 0; i < 16; ++i) {
        float& score = sums[(segment * 8 + i / 2) * 4 + half_row * 2 + i % 2];
        if (keys < kWideSegment && i / 2 * 8 + pair + i % 2 >= keys) score = kNever;
        top = fmaxf(top, score);
    }
    top = over_row(top, [](float a, float b) { return fmaxf(a, b); });
    const float shift = top > kNever ? round_up(top * args.scale) : 0.0f;
#pragma unroll
    for (int i = 0; i < 8; ++i) {
        const float* const scores = sums + (segment * 8 + i) * 4 + half_row * 2;
        const float first = fast_exp2(fmaf(scores[0], args.scale, -shift));
        const float second = fast_exp2(fmaf(scores[1], args.scale, -shift));
        sum += first + second;
        *reinterpret_cast<uint32_t*>(row + (((segment * 8 + i) ^ number) << 4) + pair * 2) = narrow_pair(first, second);
    }
    sum = over_row(sum, [](float a, float b) { return a + b; });
    if (pair || at < 0) return;
    args.shifts[at] = top > kNever ? shift : kNever;
    args.sums[at] = sum;
}

SDORT_INLINE void scores(const WideArgs& args) {
    const int unit = args.first + block_index_y(), head = unit / args.tiles;
    const int query = unit % args.tiles * kQueries, key = block_index() * kWgmmaKeys, group = thread_index() / 128;
    const Head q = head_of(args.q, head / args.heads, head % args.heads);
    const Head k = head_of(args.k, head / args.heads, head % args.heads);
    float sums[128];
    each_step<kWgmmaScoresStages>(
        buffers(), kQueryBytes + kKeyBytes, args.size / kDepth,
        [&](int step, char* to) {
            fetch<kQueries, 8>(to, [&](int row, int i) {
                return q.at(wide::at_most(query + row, args.queries - 1), step * kDepth + i * 8);
            });
            fetch<kWgmmaKeys, 8>(to + kQueryBytes, [&](int row, int i) {
                return k.at(wide::at_most(key + row, args.keys - 1), step * kDepth + i * 8);
            });
        },
        [&](int step, uint32_t from) {
            const uint64_t a = wgmma::tile(from + group * (kQueryBytes / 2)), b = wgmma::tile(from + kQueryBytes);
            wgmma::arrive();
#pragma unroll
            for (int i = 0; i < kDepth / 16; ++i) wgmma::multiply(sums, a + i * wgmma::kDeeper, b + i * wgmma::kDeeper, step | i);
        });
    block_barrier();  // the tiles have been read
    constexpr int kRow = kWgmmaKeys * 2;
    char* const tile = buffers();
    const int first_row = thread_index() / kWave * 16 + lane_index() / 4;
#pragma unroll
    for (int i = 0; i < 8; ++i) {
        const int row = first_row + i / 4 * 8, segment = key / kWideSegment + i % 4;
        const int at = segment * kWideSegment < args.pitch ? segment * args.rows + block_index_y() * kQueries + row : -1;
        weigh(args, sums, i / 4, i % 4, args.keys - segment * kWideSegment, tile + row * kRow, row % 8, at);
    }
    block_barrier();
    half* const weights = static_cast<half*>(args.weights) + block_index_y() * kQueries * static_cast<int64_t>(args.pitch) + key;
#pragma unroll 4
    for (int i = 0; i < kQueries * kRow / 16 / kWgmmaThreads; ++i) {
        const int at = thread_index() + i * kWgmmaThreads, row = at / (kRow / 16), column = at % (kRow / 16);
        if (key + column * 8 >= args.pitch) continue;
        const Quad value = *reinterpret_cast<const Quad*>(tile + row * kRow + ((column ^ (row % 8)) << 4));
        store_quad(wide::quad(weights + row * static_cast<int64_t>(args.pitch) + column * 8), value);
    }
}

SDORT_INLINE void values(const WideArgs& args) {
    SDORT_SHARED(uint32_t, factor_pairs, 2 * kQueries);
    SDORT_SHARED(float, totals, kQueries);
    const int first = block_index_y() * kQueries, unit = args.first + block_index_y(), head = unit / args.tiles;
    const int query = unit % args.tiles * kQueries, column = block_index() * kColumns;
    const int wave_row = thread_index() / kWave * 16, row = wave_row + lane_index() / 4;
    const Head v = head_of(args.v, head / args.heads, head % args.heads);
    const half* const weights = static_cast<const half*>(args.weights) + static_cast<int64_t>(first) * args.pitch;
    const int segments = args.pitch / kWideSegment;
    wide::Factors<kQueries> factors{factor_pairs, args.shifts + first, args.sums + first, args.rows, 0, 0, 0, 0};
    factors.begin(segments);
    factors.fetch(0, segments);
    float sums[64];
    wgmma::Fragment operands[2][kDepth / 16];
    each_step<kWgmmaValuesStages>(
        buffers(), kQueryBytes + 2 * kValueBytes, segments,
        [&](int step, char* to) {
            fetch<kQueries, 8>(to, [&](int r, int i) {
                return weights + (static_cast<uint32_t>(r) * static_cast<uint32_t>(args.pitch) + step * kDepth + i * 8);
            });
#pragma unroll
            for (int part = 0; part < 2; ++part)
                fetch<kDepth, 8>(to + kQueryBytes + part * kValueBytes, [&](int k, int i) {
                    return v.at(wide::at_most(step * kDepth + k, args.keys - 1),
                                wide::at_most(column + part * 64 + i * 8, args.value_size - 8));
                });
        },
        [&](int step, uint32_t from) {
            if (step + 1 < segments) factors.fetch(step + 1, segments);
            const uint32_t upper = factor_pairs[step % 2 * kQueries + row], lower = factor_pairs[step % 2 * kQueries + row + 8];
            wgmma::Fragment(&a)[kDepth / 16] = operands[step % 2];  // the products of the step before may still read theirs
#pragma unroll
            for (int i = 0; i < kDepth / 16; ++i) {
                a[i] = wgmma::load(from, wave_row, i * 2);
#pragma unroll
                for (int j = 0; j < 4; ++j) a[i].words[j] = multiply_pairs(a[i].words[j], j % 2 ? lower : upper);
            }
            const uint64_t b = wgmma::tile_across(from + kQueryBytes, kValueBytes);
            wgmma::arrive();
#pragma unroll
            for (int i = 0; i < kDepth / 16; ++i) wgmma::multiply(sums, a[i], b + i * wgmma::kDeeperAcross, step | i);
        });
    if (factors.mine()) totals[thread_index()] = factors.total;
    block_barrier();
    const int64_t pitch = static_cast<int64_t>(args.heads) * args.value_size;
    half* const y = static_cast<half*>(args.y) + head / args.heads * args.queries * pitch + head % args.heads * args.value_size;
#pragma unroll
    for (int i = 0; i < 32; ++i) {
        const int r = row + i / 16 * 8, c = column + i % 16 * 8 + lane_index() % 4 * 2;
        if (query + r >= args.queries || c >= args.value_size) continue;
        const float share = fast_rcp(totals[r]);
        const float* const pair = sums + i % 16 * 4 + i / 16 * 2;
        *reinterpret_cast<uint32_t*>(y + (query + r) * pitch + c) = narrow_pair(pair[0] * share, pair[1] * share);
    }
}

}  // namespace wide_wgmma

SDORT_KERNEL_RESIDENT(attention_wide_scores_wgmma_f16, kWgmmaThreads, 1, WideArgs, wide_wgmma::scores)
SDORT_KERNEL_RESIDENT(attention_wide_values_wgmma_f16, kWgmmaThreads, 1, WideArgs, wide_wgmma::values)

}  // namespace sdort::attention

#endif
