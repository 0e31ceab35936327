// Attention by a warpgroup's products: Hopper, fp16, head sizes 40, 64 and 80. Softmax is online and in hope, as in kernel.h.
//
// Geometry    two warpgroups of 64 queries each; K and V in tiles of 64 keys, four in flight, rows of 128 bytes whatever the
//             head size (a head of 80 has two tiles side by side): 81 KiB of shared memory at 40 and 64, where two workgroups
//             share a multiprocessor and one warpgroup's exponentials run beside the products of others; 161 KiB at 80.
// Registers   114 to 138 (REGISTERS.md): of them scores 32, weights 16, sums d / 2.
// d = 40      is contracted as 48, the rest of K's and Q's rows being zero, and summed as 40.
// Roofline    as in attention.h. Of 64 queries and 64 keys a multiprocessor's four schedulers have, in clocks: 256 of
//             exponentials (16 a clock), products 176, 256 and 320 at d = 40, 64 and 80 (2048 multiply-adds a clock), and as
//             many issued instructions as a warp has, 210 at 40. So exponentials bound it at 40 (2x4096x4096 8x40: 0.07 ms on
//             an H100), they and products alike at 64, products at 80.
// Measured    H200, 2026-11-23: 2x4096x4096 8x40 138.5 µs (310 TFLOP/s), 2x4096x4096 10x64 180.3 µs (476), 2x1024x1024 8x80
//             19.6 µs (274), where the kernels of kernel.h take 182.6, 275.6 and 29.6 µs.
#pragma once

#include "wgmma_stage.h"

#if defined(SDORT_WGMMA)

namespace sdort::attention {

namespace flash_wgmma {

using namespace wgmma_stage;

constexpr int kQueries = kFlashWgmmaQueries, kKeys = kFlashWgmmaKeys, kStages = kFlashWgmmaStages;
constexpr int kEights = kKeys / 8, kSteps = kKeys / 16;  // of keys
constexpr float kMost = 65504.0f;                        // as in wave.h

// A head's rows, cut into tiles of 64 columns.
template <int Size>
struct Rows {
    static constexpr int kTiles = (Size + 63) / 64, kDepth = (Size + 15) / 16;

    template <int Number>
    static constexpr int kBytes = kTiles * Number * 128;

    // fetch of `Number` rows from `first` on; behind the last row it is the last again.
    template <int Number>
    SDORT_INLINE static void bring(char* to, const Head& from, int first, int count) {
#pragma unroll
        for (int tile = 0; tile < kTiles; ++tile) {
            constexpr int kLast = Size / 8 - (kTiles - 1) * 8;
            const auto at = [&](int row, int unit) { return from.at(within(first + row, count), tile * 64 + unit * 8); };
            if (tile < kTiles - 1) fetch<Number, 8>(to + tile * Number * 128, at);
            else fetch<Number, kLast>(to + tile * Number * 128, at);
        }
    }

    // Columns that the last product contracts and no row has.
    template <int Number>
    SDORT_INLINE static void clear(char* to) {
        if constexpr (Size % 16 != 0)
            for (int row = thread_index(); row < Number; row += kWgmmaThreads)
                *reinterpret_cast<Quad*>(to + (kTiles - 1) * Number * 128 + wgmma::place(row, Size % 64 / 8)) = Quad{};
    }

    // From the first 16 columns of a tile's rows to the 16 of `step`, among rows of `number`.
    SDORT_INLINE static uint64_t deeper(int step, int number) {
        return static_cast<uint64_t>(step / 4 * number * 128 >> 4) + step % 4 * wgmma::kDeeper;
    }
};

// Of two queries: what their scores, times the factor, are relative to, and this thread's share of the sums of their weights.
struct Softmax {
    float shift[2] = {kNever, kNever}, sums[2] = {0.0f, 0.0f}, step_sums[2];

    SDORT_INLINE static void hide(float (&scores)[kKeys / 2], int keys) {
#pragma unroll
        for (int i = 0; i < kKeys / 2; ++i)
            if (i / 4 * 8 + lane_index() % 4 * 2 + i % 2 >= keys) scores[i] = kNever;
    }

    // Makes the largest scores what all is relative to; what was summed before is scaled down.
    template <int Length>
    SDORT_INLINE void set_shift(const float (&scores)[kKeys / 2], float factor, float (&y)[Length]) {
#pragma unroll
        for (int half_row = 0; half_row < 2; ++half_row) {
            float top = kNever;
#pragma unroll
            for (int i = 0; i < kKeys / 4; ++i) top = fmaxf(top, scores[i / 2 * 4 + half_row * 2 + i % 2]);
            top = over_row(top, [](float a, float b) { return fmaxf(a, b); });
            const float before = shift[half_row];
            shift[half_row] = fmaxf(before, top * factor);
            const float correction = fast_exp2(before - shift[half_row]);
            sums[half_row] *= correction;
#pragma unroll
            for (int i = 0; i < Length / 2; ++i) y[i / 2 * 4 + half_row * 2 + i % 2] *= correction;
        }
    }

    SDORT_INLINE void weigh(const float (&scores)[kKeys / 2], float factor, wgmma::Fragment (&weights)[kSteps]) {
        const auto weight = [&](int i) { return fast_exp2(fmaf(scores[i], factor, -shift[i / 2 % 2])); };
        step_sums[0] = step_sums[1] = 0.0f;
#pragma unroll
        for (int i = 0; i < kKeys / 4; ++i) {
            const int half_row = i % 2;
            const float first = weight(2 * i), second = weight(2 * i + 1);
            step_sums[half_row] += first + second;
            weights[i / 4].words[i % 4] = narrow_pair(first, second);
        }
    }

    // Whether a weight may be too large for float16, in any lane.
    SDORT_INLINE bool beyond() const { return wave_any(!(step_sums[0] <= kMost && step_sums[1] <= kMost)); }
};

template <int Size>
SDORT_INLINE void flash(const Args& args) {
    using R = Rows<Size>;
    constexpr int kRows = R::template kBytes<kKeys>, kQueryBytes = R::template kBytes<kQueries>;
    static_assert(R::kTiles * kFlashWgmmaBytes == kQueryBytes + kStages * 2 * kRows);
    const int batch = block_index() / args.heads, head = block_index() % args.heads, query = block_index_y() * kQueries;
    const int group = thread_index() / 128, row = thread_index() / kWave * 16 + lane_index() / 4;
    const Head k = head_of(args.k, batch, head), v = head_of(args.v, batch, head);
    char* const queries = buffers();
    char* const tiles = queries + kQueryBytes;
    R::template clear<kQueries>(queries);
    for (int i = 0; i < kStages; ++i) R::template clear<kKeys>(tiles + i * 2 * kRows);
    R::template bring<kQueries>(queries, head_of(args.q, batch, head), query, args.queries);  // lands with the first keys
    const uint64_t q = wgmma::tile(wgmma::address_of(queries) + group * 64 * 128);
    Softmax softmax;
    float y[Size / 2];
    wgmma::Fragment weights[kSteps];
#pragma unroll
    for (int i = 0; i < Size / 2; ++i) y[i] = 0.0f;
    each_step<kStages>(
        tiles, 2 * kRows, (args.keys + kKeys - 1) / kKeys,
        [&](int step, char* to) {
            R::template bring<kKeys>(to, k, step * kKeys, args.keys);
            R::template bring<kKeys>(to + kRows, v, step * kKeys, args.keys);
        },
        [&](int step, uint32_t from) {
            float scores[kKeys / 2];
            const uint64_t keys = wgmma::tile(from);
            wgmma::arrive();
#pragma unroll
            for (int i = 0; i < R::kDepth; ++i)
                wgmma::multiply(scores, q + R::deeper(i, kQueries), keys + R::deeper(i, kKeys), i);
            wgmma::commit();
            wgmma::wait<0>();  // and those of the step before with V, so that weights and y are free
            if ((step + 1) * kKeys > args.keys) Softmax::hide(scores, not_before(args.keys - step * kKeys));
            if (step == 0) softmax.set_shift(scores, args.scale, y);
            softmax.weigh(scores, args.scale, weights);
            if (softmax.beyond()) {
                softmax.set_shift(scores, args.scale, y);
                softmax.weigh(scores, args.scale, weights);
            }
            softmax.sums[0] += softmax.step_sums[0];
            softmax.sums[1] += softmax.step_sums[1];
            const uint64_t values = wgmma::tile_across(from + kRows, kKeys * 128);
            wgmma::arrive();
#pragma unroll
            for (int i = 0; i < kSteps; ++i) wgmma::multiply(y, weights[i], values + i * wgmma::kDeeperAcross, true);
        });
    const uint32_t pitch = static_cast<uint32_t>(args.heads) * Size;
    half* const target = static_cast<half*>(args.y) + (static_cast<uint32_t>(batch * args.queries) * pitch + head * Size);
#pragma unroll
    for (int half_row = 0; half_row < 2; ++half_row) {
        const int index = query + row + half_row * 8;
        const float share = fast_rcp(over_row(softmax.sums[half_row], [](float a, float b) { return a + b; }));
        if (index >= args.queries) continue;
        half* const to = target + (static_cast<uint32_t>(index) * pitch + lane_index() % 4 * 2);
#pragma unroll
        for (int i = 0; i < Size / 8; ++i) {
            const float* const pair = y + i * 4 + half_row * 2;
            *reinterpret_cast<uint32_t*>(to + i * 8) = narrow_pair(pair[0] * share, pair[1] * share);
        }
    }
}

}  // namespace flash_wgmma

SDORT_KERNEL_RESIDENT(attention_f16_40_flash_wgmma, kWgmmaThreads, 2, Args, (flash_wgmma::flash<40>))
SDORT_KERNEL_RESIDENT(attention_f16_64_flash_wgmma, kWgmmaThreads, 2, Args, (flash_wgmma::flash<64>))
SDORT_KERNEL_RESIDENT(attention_f16_80_flash_wgmma, kWgmmaThreads, 1, Args, (flash_wgmma::flash<80>))

}  // namespace sdort::attention

#endif
