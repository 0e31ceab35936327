// Attention by matrix instructions: fp16, head sizes 40, 64, 80, 96, 128 and 160.
//
// Softmax     online, and in hope: scores are taken relative to the largest of the first keys, and a step whose weights turn
//             out too large for that (their sum tells: no maximum is looked for) is computed again relative to its largest,
//             what was summed before being scaled down. The factor scale * log2(e) is applied to the float32 scores by the
//             same fused multiply-add that subtracts, so it costs nothing, and Q is not rounded twice as it would be with the
//             factor folded in. exp2 is one instruction.
//             With at most kWholeKeys keys ("whole") all of K and V stay in shared memory while the workgroup walks over
//             queries, all scores of a query are there at once, and nothing is scaled down.
// d = 40      is contracted as 48 (upper half of the last step zero), by mma.sync as 40 (m16n8k8).
// Geometry    4 waves of 16 or 32 queries (q1, q2) a workgroup; K and V in tiles of 32 or 64 keys: shared memory stays below
//             48 KiB, and Q, O and the scores of 32 or 64 keys in registers: (d / 16) * (operand + sums) * Tiles +
//             keys / 16 * sums * Tiles, with 8 sums a lane and tile (4 on mfma) and operands of 4 registers (8 on gfx11, 2 on
//             mfma).
// Registers   of a lane 80 to 129 on CDNA, 164 to 238 on RDNA, 106 to 215 on NVIDIA; "whole" ones 54 to 81, 79 to 140 and 95 to
//             128. They leave room for three workgroups a compute unit and more, on NVIDIA for as many as are named below;
//             shared memory is 12 to 44 KiB (REGISTERS.md).
// Roofline    bytes: Q and Y once, K and V once for each workgroup along S, mostly from L2: 2 * N * h * d * (2 S + 2 L).
//             flops: 4 * N * h * S * L * d on matrix units, and as many exponentials as scores: at d = 40 those bound it
//             (H100: 16 a clock and multiprocessor, 160 flops each: 590 TFLOP/s); larger d is bound by the matrix units.
#pragma once

#include "wave.h"

namespace sdort::attention {

constexpr int kWholeKeys = 80;

// What a wave computes: queries of one head.
struct Place {
    int batch, head, query;
};

template <int Queries>
SDORT_INLINE Place place_of(const Args& args, int block, int block_y, int wave) {
    return {block / args.heads, block % args.heads, (block_y * kWaves + wave) * Queries};
}

template <int Size, int Keys, int Step, int Tiles>
SDORT_INLINE void flash(const Args& args) {
    using L = Layout<Size, Keys>;
    constexpr bool kAhead = kAsyncCopies || Size < 160;  // registers that hold Q and O of the widest hold no tile as well
    SDORT_SHARED(Quad, shared, L::kQuads * (kAsyncCopies ? 2 : 1));
    const Place place = place_of<16 * Tiles>(args, block_index(), block_index_y(), thread_index() / kWave);
    const Head k = head_of(args.k, place.batch, place.head), v = head_of(args.v, place.batch, place.head);
    const auto buffer = [&](int key) {
        return reinterpret_cast<half*>(shared + (kAsyncCopies ? key / Keys % 2 * L::kQuads : 0));
    };
    Stage<L, Keys> stage;
    if (kAhead) stage.fetch(k, v, 0, args.keys, buffer(0));
    Wave<Size, Step, Tiles, L> wave;
    wave.begin(head_of(args.q, place.batch, place.head), place.query, args.queries);
    bool shift = true;
    for (int key = 0; key < args.keys; key += Step) {
        half* const tile = buffer(key);
        if (key % Keys == 0) {
            // All have computed with what lay there, or, with two buffers, with what will be overwritten next.
            if constexpr (!kAsyncCopies) block_barrier();
            kAhead ? stage.land(tile) : stage.bring(k, v, key, args.keys, tile);
            block_barrier();
            if (kAhead && key + Keys < args.keys) stage.fetch(k, v, key + Keys, args.keys, buffer(key + Keys));
        }
        for (bool done = false; !done;) {
            wave.score_all(tile + key % Keys * L::kPitch);
            // Only here: clang would compare in every step, and look at it in the last one alone.
            if (key + Step > args.keys) wave.hide(not_before(args.keys - key));
            if (shift) wave.set_shift(args.scale, true);
            wave.weigh(args.scale);
            done = shift || !wave.beyond();
            shift = !done;
        }
        wave.add_sums();
        wave.accumulate_all(stage.values(tile) + key % Keys * (matrix::kTransposes ? L::kPitch : 1));
    }
    const Place end = place_of<16 * Tiles>(args, block_index_again(), block_index_y_again(), thread_index_again() / kWave);
    wave.end(args, end.batch, end.head, end.query);
}

template <int Size, int Tiles>
SDORT_INLINE void whole(const Args& args) {
    using L = Layout<Size, kWholeKeys>;
    SDORT_SHARED(Quad, shared, L::kQuads);
    half* const buffer = reinterpret_cast<half*>(shared);
    const Place place = place_of<16 * Tiles>(args, block_index(), block_index_y(), wave_of(thread_index()));
    Stage<L, kWholeKeys> stage;
    stage.bring(head_of(args.k, place.batch, place.head), head_of(args.v, place.batch, place.head), 0, args.keys, buffer);
    block_barrier();
    Wave<Size, kWholeKeys, Tiles, L> wave;
    const int step = args.slices * kWaves * wave.kQueries;
    for (int query = place.query; query < args.queries; query += step) {
        forget_memory();
        wave.begin(head_of(args.q, place.batch, place.head), query, args.queries);
        wave.score_all(buffer);
        wave.hide(args.keys);
        wave.set_shift(args.scale, false);
        wave.weigh(args.scale);
        wave.add_sums();
        wave.accumulate_all(stage.values(buffer));
        wave.end(args, place.batch, place.head, query);
    }
}

// On NVIDIA `blocks` workgroups are on a multiprocessor at a time, four of those with all keys at hand. Two are little to ask
// of an AMD GPU, but asked for one clang keeps CDNA's sums in accumulation registers, and moves each of them there and back.
#define SDORT_ATTENTION(size, keys, step, tiles, blocks)                                                              \
    SDORT_KERNEL_RESIDENT(attention_f16_##size##_q##tiles##_k##keys##_s##step, kThreads, (kAsyncCopies ? blocks : 2), Args, \
                          (flash<size, keys, step, tiles>))
#define SDORT_ATTENTION_WHOLE(size, tiles) \
    SDORT_KERNEL_RESIDENT(attention_f16_##size##_q##tiles##_whole, kThreads, (kAsyncCopies ? 4 : 2), Args, (whole<size, tiles>))

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 900  // where ptxas needs a few registers more than four leave
SDORT_ATTENTION(40, 64, 32, 2, 3)
#else
SDORT_ATTENTION(40, 64, 32, 2, 4)
#endif
SDORT_ATTENTION(40, 64, 64, 1, 4)
SDORT_ATTENTION(64, 64, 64, 1, 4)
#if !defined(SDORT_MATRIX_WMMA_GFX11)  // whose operands of 8 registers would not fit
SDORT_ATTENTION(64, 64, 32, 2, 3)
SDORT_ATTENTION(80, 32, 32, 2, 2)
#endif
SDORT_ATTENTION(80, 64, 64, 1, 4)
SDORT_ATTENTION(96, 32, 32, 1, 4)
SDORT_ATTENTION(128, 32, 32, 1, 3)
SDORT_ATTENTION(160, 32, 32, 1, 2)
SDORT_ATTENTION_WHOLE(40, 1)
SDORT_ATTENTION_WHOLE(64, 1)
SDORT_ATTENTION_WHOLE(80, 1)
SDORT_ATTENTION_WHOLE(96, 1)
SDORT_ATTENTION_WHOLE(128, 1)

}  // namespace sdort::attention
