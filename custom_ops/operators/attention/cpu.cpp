#include "cpu.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>

#include "cpu/convert.h"

namespace sdort::cpu {
namespace {

using sdort::attention::Problem;
using sdort::attention::Tensor;

#define SDORT_FLAT __attribute__((always_inline)) inline

constexpr int64_t kKeys = 128;   // of a tile: its scores and K stay in the first-level cache for d up to 160
constexpr int64_t kQueries = 64;  // of a task: what a tile of K and V costs to convert is shared by as many
constexpr int kRows = 4;         // queries that a step computes together: eight accumulators with two vectors of columns

// A vector of W floats, and what compilers make of it on the machine that the function is compiled for.
template <int W>
struct Vector {
    typedef float Type __attribute__((vector_size(W * sizeof(float)), aligned(4)));
    typedef int32_t Integer __attribute__((vector_size(W * sizeof(float)), aligned(4)));
};

template <int W>
SDORT_FLAT typename Vector<W>::Type& at(float* p) {
    return *reinterpret_cast<typename Vector<W>::Type*>(p);
}
template <int W>
SDORT_FLAT const typename Vector<W>::Type& at(const float* p) {
    return *reinterpret_cast<const typename Vector<W>::Type*>(p);
}

// x becomes 2^x, for x <= 0, relative error about 2e-7; below -126 it is 0. Taylor's series on [-1/2, 1/2].
template <int W>
SDORT_FLAT void raise_two(typename Vector<W>::Type& x) {
    using V = typename Vector<W>::Type;
    using I = typename Vector<W>::Integer;
    const I tiny = x < -126.0f;
    const V bounded = tiny ? V{} - 126.0f : x;
    const I whole = __builtin_convertvector(bounded - 0.5f, I);  // toward zero: the nearest integer, as x <= 0
    const V r = (bounded - __builtin_convertvector(whole, V)) * 0.693147181f;
    V p = r * (1.0f / 5040.0f) + 1.0f / 720.0f;
    p = p * r + 1.0f / 120.0f;
    p = p * r + 1.0f / 24.0f;
    p = p * r + 1.0f / 6.0f;
    p = p * r + 0.5f;
    p = p * r + 1.0f;
    p = p * r + 1.0f;
    x = tiny ? V{} : p * reinterpret_cast<V>((whole + 127) << 23);
}

// to[i][j] (+)= sum over k of left[i][k] * right[k][j], for kRows rows and 2 W columns.
template <int W>
SDORT_FLAT void multiply_block(const float* left, int64_t left_pitch, const float* right, int64_t right_pitch, int64_t depth,
                               float* to, int64_t pitch, bool add) {
    using V = typename Vector<W>::Type;
    V sums[kRows][2];
    for (int i = 0; i < kRows; ++i)
        for (int j = 0; j < 2; ++j) sums[i][j] = add ? at<W>(to + i * pitch + j * W) : V{};
    for (int64_t k = 0; k < depth; ++k) {
        const V first = at<W>(right + k * right_pitch), second = at<W>(right + k * right_pitch + W);
#pragma GCC unroll 4
        for (int i = 0; i < kRows; ++i) {
            sums[i][0] += left[i * left_pitch + k] * first;
            sums[i][1] += left[i * left_pitch + k] * second;
        }
    }
    for (int i = 0; i < kRows; ++i)
        for (int j = 0; j < 2; ++j) at<W>(to + i * pitch + j * W) = sums[i][j];
}

// Room for the tiles of one task; rows are padded to `wide` columns, whole blocks of every vector width.
struct Scratch {
    int64_t size, wide;  // of V, padded
    std::unique_ptr<float[]> memory;
    float *q, *k, *v, *scores, *y;
    float largest[kQueries], sums[kQueries];

    explicit Scratch(const Problem& p) : size(p.size), wide((p.value_size + 31) / 32 * 32) {
        memory = std::make_unique<float[]>(kQueries * size + kKeys * size + kKeys * wide + kQueries * kKeys + kQueries * wide);
        q = memory.get();
        k = q + kQueries * size;
        v = k + kKeys * size;
        scores = v + kKeys * wide;
        y = scores + kQueries * kKeys;
        std::fill(largest, largest + kQueries, -INFINITY);
        std::fill(sums, sums + kQueries, 0.0f);
    }
};

template <class T>
SDORT_FLAT const T* head_of(const Tensor& t, int64_t batch, int64_t head) {
    return static_cast<const T*>(t.data) + batch * t.batch + head * t.head;
}

// Queries times scale, bias included; rows beyond the last stay zero.
template <class T>
SDORT_FLAT void read_queries(const Problem& p, const T* q, const T* bias, int64_t first, int64_t count, float* to) {
    const float scale = static_cast<float>(p.scale * 1.44269504088896340736);
    for (int64_t r = 0; r < count; ++r) {
        float* row = to + r * p.size;
        widen(q + (first + r) * p.q.row, row, p.size);
        for (int64_t c = 0; c < p.size; ++c) row[c] = (row[c] + (bias ? static_cast<float>(bias[c]) : 0.0f)) * scale;
    }
}

// A tile of K, transposed: to[c][r].
template <class T>
SDORT_FLAT void read_keys(const Problem& p, const T* k, int64_t first, int64_t count, float* row, float* to) {
    for (int64_t r = 0; r < count; ++r) {
        widen(k + (first + r) * p.k.row, row, p.size);
        for (int64_t c = 0; c < p.size; ++c) to[c * kKeys + r] = row[c];
    }
}

template <class T>
SDORT_FLAT void read_values(const Problem& p, const T* v, int64_t first, int64_t count, Scratch& s) {
    for (int64_t r = 0; r < count; ++r) widen(v + (first + r) * p.v.row, s.v + r * s.wide, p.value_size);
}

// A row of scores, of which `count` are to be seen, becomes weights; the others become zero.
template <int W>
SDORT_FLAT void weigh(float* scores, int64_t count, float& largest, float& sum, float* y, int64_t wide) {
    using V = typename Vector<W>::Type;
    for (int64_t i = count; i < kKeys; ++i) scores[i] = -INFINITY;
    V highest = at<W>(scores);
    for (int64_t i = W; i < kKeys; i += W) highest = at<W>(scores + i) > highest ? at<W>(scores + i) : highest;
    float peak = largest;
    for (int i = 0; i < W; ++i) peak = std::max(peak, highest[i]);
    if (peak > largest) {
        const float correction = std::exp2(largest - peak);
        largest = peak;
        sum *= correction;
        for (int64_t c = 0; c < wide; c += W) at<W>(y + c) *= correction;
    }
    V total{};
    for (int64_t i = 0; i < kKeys; i += W) {
        V weights = at<W>(scores + i) - peak;
        raise_two<W>(weights);
        at<W>(scores + i) = weights;
        total += weights;
    }
    for (int i = 0; i < W; ++i) sum += total[i];
}

template <class T>
SDORT_FLAT void write(const Problem& p, Scratch& s, int64_t batch, int64_t head, int64_t first, int64_t count) {
    const T* bias = static_cast<const T*>(p.bias);
    if (bias) bias += 2 * p.heads * p.size + head * p.value_size;
    for (int64_t r = 0; r < count; ++r) {
        float* row = s.y + r * s.wide;
        for (int64_t c = 0; c < p.value_size; ++c) row[c] = row[c] / s.sums[r] + (bias ? static_cast<float>(bias[c]) : 0.0f);
        narrow(row, static_cast<T*>(p.y) + ((batch * p.queries + first + r) * p.heads + head) * p.value_size, p.value_size);
    }
}

template <class T, int W>
SDORT_FLAT void compute(const Problem& p, size_t task) {
    const int64_t tiles = ceil_div(p.queries, kQueries), tile = static_cast<int64_t>(task) % tiles;
    const int64_t head = static_cast<int64_t>(task) / tiles % p.heads, batch = static_cast<int64_t>(task) / tiles / p.heads;
    const int64_t first = tile * kQueries, count = std::min(kQueries, p.queries - first), rows = (count + kRows - 1) / kRows * kRows;
    Scratch s(p);
    const T* bias = p.bias ? static_cast<const T*>(p.bias) + head * p.size : nullptr;
    read_queries(p, head_of<T>(p.q, batch, head), bias, first, count, s.q);
    const int64_t end = p.causal ? std::min(p.keys, first + count) : p.keys;
    for (int64_t key = 0; key < end; key += kKeys) {
        const int64_t keys = std::min(kKeys, end - key), columns = (keys + 2 * W - 1) / (2 * W) * (2 * W);
        read_keys(p, head_of<T>(p.k, batch, head), key, keys, s.scores, s.k);
        read_values(p, head_of<T>(p.v, batch, head), key, keys, s);
        for (int64_t c = 0; c < columns; c += 2 * W)
            for (int64_t r = 0; r < rows; r += kRows)
                multiply_block<W>(s.q + r * s.size, s.size, s.k + c, kKeys, p.size, s.scores + r * kKeys + c, kKeys, false);
        for (int64_t r = 0; r < count; ++r) {
            const int64_t seen = p.causal ? std::clamp<int64_t>(first + r + 1 - key, 0, keys) : keys;
            if (seen) weigh<W>(s.scores + r * kKeys, seen, s.largest[r], s.sums[r], s.y + r * s.wide, s.wide);
            else std::fill(s.scores + r * kKeys, s.scores + (r + 1) * kKeys, 0.0f);
        }
        for (int64_t c = 0; c < s.wide; c += 2 * W)
            for (int64_t r = 0; r < rows; r += kRows)
                multiply_block<W>(s.scores + r * kKeys, kKeys, s.v + c, s.wide, keys, s.y + r * s.wide + c, s.wide, true);
    }
    write<T>(p, s, batch, head, first, count);
}

template <int W>
SDORT_FLAT void compute_as(const Problem& p, Dtype dtype, size_t task) {
    dtype == Dtype::kFloat16 ? compute<_Float16, W>(p, task) : compute<float, W>(p, task);
}

#if defined(__x86_64__)
__attribute__((target("arch=x86-64-v4,prefer-vector-width=512"))) void with_avx512(const Problem& p, Dtype dtype, size_t task) {
    compute_as<16>(p, dtype, task);
}
__attribute__((target("arch=x86-64-v3"))) void with_avx2(const Problem& p, Dtype dtype, size_t task) {
    compute_as<8>(p, dtype, task);
}
#endif
void with_any(const Problem& p, Dtype dtype, size_t task) { compute_as<4>(p, dtype, task); }

using Function = void (*)(const Problem&, Dtype, size_t);

Function choose() {
#if defined(__x86_64__)
    if (__builtin_cpu_supports("x86-64-v4")) return with_avx512;
    if (__builtin_cpu_supports("x86-64-v3")) return with_avx2;
#endif
    return with_any;
}

}  // namespace

int64_t attention_queries(const Problem&) { return kQueries; }

void attention(const Problem& problem, Dtype dtype, size_t task) {
    static const Function chosen = choose();
    chosen(problem, dtype, task);
}

}  // namespace sdort::cpu
