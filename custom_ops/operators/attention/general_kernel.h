// Attention without matrix instructions: any head size, fp16 and fp32 storage, float32 arithmetic.
//
// Geometry    256 threads compute 32 queries: sixteen lanes share two of them, each lane with four of a tile's 64 keys and
//             four of every 64 columns of Y. Tiles of Q, K and V pass through shared memory as float32 (39 KiB), the
//             contraction in steps of 32, so the head size is bounded by nothing but the registers that hold Y: 8 for each
//             64 columns. Wider heads are cut into slices, which compute the same weights again.
// Registers   75 to 196 of a lane on AMD GPUs, with room for two workgroups a compute unit where shared memory has it; 64 to
//             242 on NVIDIA, four workgroups, two and one (REGISTERS.md).
// Roofline    4 * N * h * S * L * d flops on the vector units; K and V are read once for 32 queries.
#pragma once

#include "attention.h"
#include "device/copy.h"

namespace sdort::attention {

constexpr int kGeneralThreads = 256, kGeneralQueries = 32, kGeneralKeys = 64, kGeneralColumns = 64;

namespace general {

constexpr int kStep = 32;         // of the contraction
constexpr int kPitch = kStep + 4;  // of a row in shared memory: 16-byte reads of neighbouring rows meet all banks
constexpr int kWeights = kGeneralKeys + 4;

struct Shared {
    float* q;        // kGeneralQueries rows of kPitch
    float* k;        // kGeneralKeys rows of kPitch
    float* weights;  // kGeneralQueries rows of kWeights
    float* v;        // kGeneralKeys rows of kGeneralColumns
};

// Rows [row, row + Rows) and columns [column, column + Columns) of one head, zero outside of (rows, columns).
template <int Rows, int Columns, class T>
SDORT_INLINE void stage(float* target, int pitch, const T* head, int64_t stride, int row, int rows, int column, int columns) {
    for (int i = thread_index(); i < Rows * Columns; i += kGeneralThreads) {
        const int r = i / Columns, c = i % Columns;
        const bool inside = row + r < rows && column + c < columns;
        target[r * pitch + c] = inside ? widen(head[(row + r) * stride + column + c]) : 0.0f;
    }
}

template <class T>
SDORT_INLINE void add_bias(float* q, const T* bias, int column, int columns) {
    for (int i = thread_index(); i < kGeneralQueries * kStep; i += kGeneralThreads) {
        const int c = i % kStep;
        if (column + c < columns) q[i / kStep * kPitch + c] += widen(bias[column + c]);
    }
}

SDORT_INLINE void read4(const float* source, float (&values)[4]) {
    const Pack<float, 4> pack = *reinterpret_cast<const Pack<float, 4>*>(source);
#pragma unroll
    for (int i = 0; i < 4; ++i) values[i] = pack[i];
}

// scores[a][b] of query 2 * row + a and key lane + 16 * b of the tile at `key`.
template <class T>
SDORT_INLINE void multiply(const Args& args, const Shared& shared, const T* q, const T* k, const T* bias, int query, int key,
                           float (&scores)[2][4]) {
    const int row = thread_index() / 16, lane = thread_index() % 16;
#pragma unroll
    for (int i = 0; i < 8; ++i) scores[i / 4][i % 4] = 0.0f;
    for (int column = 0; column < args.size; column += kStep) {
        block_barrier();
        stage<kGeneralQueries, kStep>(shared.q, kPitch, q, args.q.row, query, args.queries, column, args.size);
        stage<kGeneralKeys, kStep>(shared.k, kPitch, k, args.k.row, key, args.keys, column, args.size);
        // The same thread stages an element and adds to it.
        if (bias) add_bias(shared.q, bias, column, args.size);
        block_barrier();
#if defined(__CUDACC__)
#pragma unroll 1  // ptxas would need more registers than there are for four workgroups
#endif
        for (int i = 0; i < kStep; i += 4) {
            float left[2][4], right[4];
#pragma unroll
            for (int a = 0; a < 2; ++a) read4(shared.q + (2 * row + a) * kPitch + i, left[a]);
#pragma unroll
            for (int b = 0; b < 4; ++b) {
                read4(shared.k + (lane + 16 * b) * kPitch + i, right);
#pragma unroll
                for (int j = 0; j < 8; ++j) scores[j / 4][b] = fmaf(left[j / 4][j % 4], right[j % 4], scores[j / 4][b]);
            }
        }
    }
}

SDORT_INLINE float max16(float value) {
    value = fmaxf(value, shuffle_xor<1>(value));
    value = fmaxf(value, shuffle_xor<2>(value));
    value = fmaxf(value, shuffle_xor<4>(value));
    return fmaxf(value, shuffle_xor<8>(value));
}

SDORT_INLINE float sum16(float value) {
    value += shuffle_xor<1>(value);
    value += shuffle_xor<2>(value);
    value += shuffle_xor<4>(value);
    return value + shuffle_xor<8>(value);
}

// One query's scores become weights relative to its largest score so far. Returns what older sums must be multiplied by.
SDORT_INLINE float weigh(const Args& args, int query, int key, float (&scores)[4], float& largest, float& sum) {
    const int end = args.causal && query + 1 < args.keys ? query + 1 : args.keys;
    float tile = kNever;
#pragma unroll
    for (int b = 0; b < 4; ++b) {
        scores[b] = key + 16 * b < end ? scores[b] * args.scale : kNever;
        tile = fmaxf(tile, scores[b]);
    }
    const float before = largest;
    largest = fmaxf(before, max16(tile));
    const float correction = fast_exp2(before - largest);
    sum *= correction;
#pragma unroll
    for (int b = 0; b < 4; ++b) {
        scores[b] = fast_exp2(scores[b] - largest);
        sum += scores[b];
    }
    return correction;
}

// y[a] += weights of query 2 * row + a times columns 4 * lane to 4 * lane + 3 of the staged block of V.
SDORT_INLINE void accumulate(const Shared& shared, float (&y)[2][4]) {
    const int row = thread_index() / 16, lane = thread_index() % 16;
    for (int key = 0; key < kGeneralKeys; key += 4) {
        float weights[2][4], v[4];
#pragma unroll
        for (int a = 0; a < 2; ++a) read4(shared.weights + (2 * row + a) * kWeights + key, weights[a]);
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            read4(shared.v + (key + i) * kGeneralColumns + 4 * lane, v);
#pragma unroll
            for (int j = 0; j < 8; ++j) y[j / 4][j % 4] = fmaf(weights[j / 4][i], v[j % 4], y[j / 4][j % 4]);
        }
    }
}

template <class T, int Blocks>
SDORT_INLINE void write(const Args& args, const float (&y)[Blocks][2][4], const float (&sums)[2], int batch, int head,
                        int query, int column) {
    const int64_t row = static_cast<int64_t>(args.heads) * args.value_size;
    const T* bias = static_cast<const T*>(args.bias);
    if (bias) bias += 2 * args.heads * args.size + head * args.value_size;
    T* target = static_cast<T*>(args.y) + static_cast<int64_t>(batch) * args.queries * row + head * args.value_size;
#pragma unroll
    for (int i = 0; i < Blocks * 8; ++i) {
        const int block = i / 8, a = i / 4 % 2, c = column + block * kGeneralColumns + i % 4;
        if (query + a >= args.queries || c >= args.value_size) continue;
        const float value = y[block][a][i % 4] / sums[a] + (bias ? widen(bias[c]) : 0.0f);
        target[(query + a) * row + c] = Narrow<T>::from(value);
    }
}

// Blocks of 64 columns of Y in registers.
template <class T, int Blocks>
SDORT_INLINE void body(const Args& args) {
    SDORT_SHARED(Quad, q_tile, kGeneralQueries * kPitch / 4);
    SDORT_SHARED(Quad, k_tile, kGeneralKeys * kPitch / 4);
    SDORT_SHARED(Quad, weight_tile, kGeneralQueries * kWeights / 4);
    SDORT_SHARED(Quad, v_tile, kGeneralKeys * kGeneralColumns / 4);
    const Shared shared{reinterpret_cast<float*>(q_tile), reinterpret_cast<float*>(k_tile),
                        reinterpret_cast<float*>(weight_tile), reinterpret_cast<float*>(v_tile)};
    const int batch = block_index() / args.heads, head = block_index() % args.heads;
    const int query = block_index_y() / args.slices * kGeneralQueries;
    const int column = block_index_y() % args.slices * (Blocks * kGeneralColumns);
    const int row = thread_index() / 16, lane = thread_index() % 16;
    const T* q = static_cast<const T*>(args.q.data) + batch * args.q.batch + head * args.q.head;
    const T* k = static_cast<const T*>(args.k.data) + batch * args.k.batch + head * args.k.head;
    const T* v = static_cast<const T*>(args.v.data) + batch * args.v.batch + head * args.v.head;
    const T* bias = args.bias ? static_cast<const T*>(args.bias) + head * args.size : nullptr;
    float y[Blocks][2][4] = {}, largest[2] = {kNever, kNever}, sums[2] = {};
    const int last = query + kGeneralQueries;
    const int end = args.causal && last < args.keys ? last : args.keys;
    for (int key = 0; key < end; key += kGeneralKeys) {
        float scores[2][4];
        multiply(args, shared, q, k, bias, query, key, scores);
#pragma unroll
        for (int a = 0; a < 2; ++a) {
            const float correction = weigh(args, query + 2 * row + a, key + lane, scores[a], largest[a], sums[a]);
#pragma unroll
            for (int i = 0; i < Blocks * 4; ++i) y[i / 4][a][i % 4] *= correction;
#pragma unroll
            for (int b = 0; b < 4; ++b) shared.weights[(2 * row + a) * kWeights + lane + 16 * b] = scores[a][b];
        }
#pragma unroll
        for (int block = 0; block < Blocks; ++block) {
            block_barrier();
            stage<kGeneralKeys, kGeneralColumns>(shared.v, kGeneralColumns, v, args.v.row, key, args.keys,
                                                 column + block * kGeneralColumns, args.value_size);
            block_barrier();
            accumulate(shared, y[block]);
        }
    }
    const float total[2] = {sum16(sums[0]), sum16(sums[1])};
    write<T>(args, y, total, batch, head, query + 2 * row, column + 4 * lane);
}

}  // namespace general

// Columns of Y, workgroups that an NVIDIA multiprocessor has at a time.
#define SDORT_ATTENTION_GENERAL(columns, blocks)                                                                 \
    SDORT_KERNEL_RESIDENT(attention_general_f32_##columns, kGeneralThreads, (kAsyncCopies ? blocks : 1), Args, \
                          (general::body<float, columns / kGeneralColumns>))                                     \
    SDORT_KERNEL_RESIDENT(attention_general_f16_##columns, kGeneralThreads, (kAsyncCopies ? blocks : 1), Args, \
                          (general::body<half, columns / kGeneralColumns>))

SDORT_ATTENTION_GENERAL(64, 4)
SDORT_ATTENTION_GENERAL(192, 2)
SDORT_ATTENTION_GENERAL(512, 1)

}  // namespace sdort::attention
