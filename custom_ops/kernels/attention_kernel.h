// Attention by matrix instructions: fp16, head sizes 40, 64, 80, 96, 128 and 160.
//
// Softmax     online: scores are taken relative to the largest one so far, or one up to 2^8 below it: what was summed is
//             scaled down only when a score exceeds that, and only then lanes compare their largest. The factor
//             scale * log2(e) is applied to the float32 scores by the same fused multiply-add that subtracts, so it costs
//             nothing, and Q is not rounded twice as it would be with the factor folded in. exp2 is one instruction.
//             With at most kWholeKeys keys ("whole") all of K and V stay in shared memory while the workgroup walks over
//             queries, all scores of a query are there at once, and nothing is scaled down.
// d = 40      is contracted as 48 (upper half of the last step zero), by mma.sync as 40 (m16n8k8).
// Geometry    4 waves of 16 or 32 queries (q1, q2) a workgroup; K and V in tiles of 32 or 64 keys: shared memory stays below
//             48 KiB, and Q, O and the scores of 32 or 64 keys in registers: (d / 16) * (operand + sums) * Tiles +
//             keys / 16 * sums * Tiles, with 8 sums a lane and tile (4 on mfma) and operands of 4 registers (8 on gfx11, 2 on
//             mfma).
// Roofline    bytes: Q and Y once, K and V once for each workgroup along S, mostly from L2: 2 * N * h * d * (2 S + 2 L).
//             flops: 4 * N * h * S * L * d on matrix units, and as many exponentials as scores: at d = 40 those bound it
//             (H100: 16 a clock and multiprocessor, 160 flops each: 590 TFLOP/s); larger d is bound by the matrix units.
#pragma once

#include "attention_wave.h"

namespace sdort::attention {

constexpr int kWholeKeys = 80;

template <int Size, int Keys, int Step, int Tiles>
SDORT_INLINE void flash(const Args& args) {
    using L = Layout<Size, Keys, Step>;
    constexpr bool kAhead = kAsyncCopies || Size < 160;  // registers that hold Q and O of the widest hold no tile as well
    SDORT_SHARED(Quad, shared, L::kQuads * (kAsyncCopies ? 2 : 1));
    const int batch = block_index() / args.heads, head = block_index() % args.heads;
    const Head k = head_of(args.k, batch, head), v = head_of(args.v, batch, head);
    const auto buffer = [&](int i) { return reinterpret_cast<half*>(shared + (kAsyncCopies ? i % 2 * L::kQuads : 0)); };
    Stage<L, Keys> stage;
    if (kAhead) stage.fetch(k, v, 0, args.keys, buffer(0));
    Wave<Size, Step, Tiles, L> wave;
    const int query = (block_index_y() * kWaves + thread_index() / kWave) * wave.kQueries;
    wave.begin(head_of(args.q, batch, head), query, args.queries);
    for (int key = 0, i = 0; key < args.keys; key += Keys, ++i) {
        // All have computed with what lay there, or, with two buffers, with what will be overwritten next.
        if constexpr (!kAsyncCopies) block_barrier();
        kAhead ? stage.land(buffer(i)) : stage.bring(k, v, key, args.keys, buffer(i));
        block_barrier();
        if (kAhead && key + Keys < args.keys) stage.fetch(k, v, key + Keys, args.keys, buffer(i + 1));
        const half* const keys = buffer(i);
        const half* const values = stage.values(buffer(i));
#pragma unroll 1
        for (int first = 0; first < Keys; first += Step) {
            if (Step < Keys && key + first >= args.keys) break;
            wave.score_all(keys + first * L::kPitch);
            if (key + first + Step > args.keys) wave.hide(args.keys - key - first);
            if (wave.must_shift(args.scale)) wave.set_shift(args.scale, true);
            wave.weigh(args.scale);
            wave.accumulate_all(values + first * (matrix::kTransposes ? L::kPitch : 1));
        }
    }
    wave.end(args, batch, head, query);
}

template <int Size, int Tiles>
SDORT_INLINE void whole(const Args& args) {
    using L = Layout<Size, kWholeKeys, kWholeKeys>;
    SDORT_SHARED(Quad, shared, L::kQuads);
    half* const buffer = reinterpret_cast<half*>(shared);
    const int batch = block_index() / args.heads, head = block_index() % args.heads;
    Stage<L, kWholeKeys> stage;
    stage.bring(head_of(args.k, batch, head), head_of(args.v, batch, head), 0, args.keys, buffer);
    block_barrier();
    Wave<Size, kWholeKeys, Tiles, L> wave;
    const int step = args.slices * kWaves * wave.kQueries;
    int query = (block_index_y() * kWaves + thread_index() / kWave) * wave.kQueries;
    for (; query < args.queries; query += step) {
        forget_memory();
        wave.begin(head_of(args.q, batch, head), query, args.queries);
        wave.score_all(buffer);
        wave.hide(args.keys);
        wave.set_shift(args.scale, false);
        wave.weigh(args.scale);
        wave.accumulate_all(stage.values(buffer));
        wave.end(args, batch, head, query);
    }
}

#define SDORT_ATTENTION(size, keys, step, tiles) \
    SDORT_KERNEL(attention_f16_##size##_q##tiles##_k##keys##_s##step, kThreads, Args, (flash<size, keys, step, tiles>))
#define SDORT_ATTENTION_WHOLE(size, tiles) \
    SDORT_KERNEL(attention_f16_##size##_q##tiles##_whole, kThreads, Args, (whole<size, tiles>))

SDORT_ATTENTION(40, 64, 32, 2)
SDORT_ATTENTION(40, 64, 64, 1)
SDORT_ATTENTION(64, 64, 64, 1)
#if !defined(SDORT_MATRIX_WMMA_GFX11)  // whose operands of 8 registers would not fit
SDORT_ATTENTION(64, 64, 32, 2)
SDORT_ATTENTION(80, 32, 32, 2)
#endif
SDORT_ATTENTION(80, 64, 64, 1)
SDORT_ATTENTION(96, 32, 32, 1)
SDORT_ATTENTION(128, 32, 32, 1)
SDORT_ATTENTION(160, 32, 32, 1)
SDORT_ATTENTION_WHOLE(40, 1)
SDORT_ATTENTION_WHOLE(64, 1)
SDORT_ATTENTION_WHOLE(80, 1)
SDORT_ATTENTION_WHOLE(96, 1)
SDORT_ATTENTION_WHOLE(128, 1)

}  // namespace sdort::attention
