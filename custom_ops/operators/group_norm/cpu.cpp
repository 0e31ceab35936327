#include "cpu.h"

#include <cmath>
#include <vector>

#include "cpu/convert.h"
#include "cpu/silu.h"
#include "cpu/vector.h"

namespace sdort::cpu {
namespace {

using group_norm::Problem;

constexpr int64_t kChunk = 32768;  // elements: 128 KiB of floats, half of a small second-level cache

int64_t chunk_rows(const Problem& p) { return std::max<int64_t>(1, kChunk / p.channels); }

struct Chunk {
    int64_t image, first, rows;  // rows of the whole batch
};

Chunk chunk_of(const Problem& p, size_t task) {
    const int64_t chunks = group_norm_chunks(p), rows = chunk_rows(p);
    const int64_t image = static_cast<int64_t>(task) / chunks, first = static_cast<int64_t>(task) % chunks * rows;
    return {image, image * p.hw + first, std::min(rows, p.hw - first)};
}

// gamma or beta of a channel.
float affine_at(const Problem& p, const void* values, int64_t channel) {
    if (p.half_affine) return static_cast<float>(static_cast<const _Float16*>(values)[channel]);
    return static_cast<const float*>(values)[channel];
}

// What is added to each channel of an image's rows. `scratch` and `shift` have room for a row.
template <class T>
SDORT_FLATTEN void shifts(const Problem& p, int64_t image, float* scratch, float* shift) {
    std::fill(shift, shift + p.channels, 0.0f);
    for (const T* from : {static_cast<const T*>(p.bias),
                          p.embedding ? static_cast<const T*>(p.embedding) + image * p.channels : nullptr}) {
        if (!from) continue;
        widen(from, scratch, p.channels);
        for (int64_t c = 0; c < p.channels; ++c) shift[c] += scratch[c];
    }
}

// One row of S, rounded to T, as floats.
template <class T>
SDORT_FLATTEN void summed(const Problem& p, int64_t row, const float* shift, float* scratch, float* to) {
    const int64_t channels = p.channels, second = channels - p.x_channels;
    widen(static_cast<const T*>(p.x) + row * p.x_channels, to, p.x_channels);
    if (second) widen(static_cast<const T*>(p.x2) + row * second, to + p.x_channels, second);
    if (p.skip) {
        widen(static_cast<const T*>(p.skip) + row * channels, scratch, channels);
        for (int64_t c = 0; c < channels; ++c) to[c] = rounded<T>(to[c] + scratch[c] + shift[c]);
    } else if (p.bias || p.embedding) {
        for (int64_t c = 0; c < channels; ++c) to[c] = rounded<T>(to[c] + shift[c]);
    }
}

template <class T>
SDORT_FLATTEN void measure(const Problem& p, size_t task, float* partials) {
    const Chunk chunk = chunk_of(p, task);
    const int64_t channels = p.channels;
    thread_local std::vector<float> memory;
    memory.resize(channels * (chunk.rows + 2));
    float* const values = memory.data();
    float* const shift = values + channels * chunk.rows;
    float* const scratch = shift + channels;
    float* const pivot = partials + task * 3 * channels;
    float *const mean = pivot + channels, *const square = mean + channels;
    shifts<T>(p, chunk.image, scratch, shift);
    std::fill(mean, mean + 2 * channels, 0.0f);
    for (int64_t r = 0; r < chunk.rows; ++r) {
        float* const row = values + r * channels;
        summed<T>(p, chunk.first + r, shift, scratch, row);
        // As distances to the first row: equal values then have exactly their mean, and large ones lose nothing.
        for (int64_t c = 0; c < channels; ++c) mean[c] += row[c] - values[c];
        if (p.sum) narrow(row, static_cast<T*>(p.sum) + (chunk.first + r) * channels, channels);
    }
    std::copy(values, values + channels, pivot);
    for (int64_t c = 0; c < channels; ++c) mean[c] /= static_cast<float>(chunk.rows);
    for (int64_t r = 0; r < chunk.rows; ++r) {
        const float* const row = values + r * channels;
        for (int64_t c = 0; c < channels; ++c) {
            const float d = row[c] - pivot[c] - mean[c];
            square[c] += d * d;
        }
    }
}

template <class T>
SDORT_FLATTEN void apply(const Problem& p, size_t task, const float* coefficients) {
    const Chunk chunk = chunk_of(p, task);
    const int64_t channels = p.channels;
    thread_local std::vector<float> memory;
    memory.resize(3 * channels);
    float* const row = memory.data();
    float *const shift = row + channels, *const scratch = shift + channels;
    const float* const mean = coefficients + chunk.image * 3 * channels;
    const float *scale = mean + channels, *beta = scale + channels;
    shifts<T>(p, chunk.image, scratch, shift);
    for (int64_t r = chunk.first; r < chunk.first + chunk.rows; ++r) {
        summed<T>(p, r, shift, scratch, row);
        for (int64_t c = 0; c < channels; ++c) row[c] = (row[c] - mean[c]) * scale[c] + beta[c];
        if (p.silu)
            for (int64_t c = 0; c < channels; ++c) row[c] = silu(row[c]);
        narrow(row, static_cast<T*>(p.y) + r * channels, channels);
    }
}

constexpr int64_t kBlock = 4096;

// body(values, count, first) for the elements in blocks, as floats.
template <class T, class Body>
SDORT_FLATTEN void blocks(const T* from, int64_t count, Body body) {
    float values[kBlock];
    for (int64_t first = 0; first < count; first += kBlock) {
        const int64_t size = std::min(kBlock, count - first);
        widen(from + first, values, size);
        body(values, size, first);
    }
}

// Several sums at once, so that the loop has no chain of dependent additions and becomes vectors.
template <class Term>
SDORT_FLATTEN double total(const float* values, int64_t count, Term term) {
    constexpr int64_t kSums = 32;
    float sums[kSums] = {};
    double all = 0;
    int64_t i = 0;
    for (; i + kSums <= count; i += kSums)
        for (int64_t k = 0; k < kSums; ++k) sums[k] += term(values[i + k]);
    for (; i < count; ++i) all += term(values[i]);
    for (const float sum : sums) all += sum;
    return all;
}

template <class T>
SDORT_FLATTEN void planes(const Problem& p, size_t task) {
    const int64_t size = p.channels / p.groups, count = size * p.hw;
    const int64_t first_channel = static_cast<int64_t>(task) % p.groups * size;
    const T* const x = static_cast<const T*>(p.x) + static_cast<int64_t>(task) * count;
    T* const y = static_cast<T*>(p.y) + static_cast<int64_t>(task) * count;
    float pivot;
    widen(x, &pivot, 1);
    double sum = 0, square = 0;
    blocks(x, count, [&](const float* values, int64_t n, int64_t) {
        sum += total(values, n, [pivot](float value) { return value - pivot; });
    });
    const double mean = pivot + sum / count;
    const float high = static_cast<float>(mean), low = static_cast<float>(mean - high);
    blocks(x, count, [&](const float* values, int64_t n, int64_t) {
        square += total(values, n, [high](float value) { return (value - high) * (value - high); });
    });
    const float inverse = static_cast<float>(1 / std::sqrt(square / count + p.epsilon));
    for (int64_t c = 0; c < size; ++c) {
        const float scale = inverse * affine_at(p, p.gamma, first_channel + c);
        const float beta = affine_at(p, p.beta, first_channel + c) - low * scale;
        blocks(x + c * p.hw, p.hw, [&](float* values, int64_t n, int64_t first) {
            for (int64_t i = 0; i < n; ++i) values[i] = (values[i] - high) * scale + beta;
            if (p.silu)
                for (int64_t i = 0; i < n; ++i) values[i] = silu(values[i]);
            narrow(values, y + c * p.hw + first, n);
        });
    }
}

}  // namespace

int64_t group_norm_chunks(const Problem& p) { return ceil_div(p.hw, chunk_rows(p)); }

void group_norm_merge(const Problem& p, size_t image, const float* partials, float* coefficients) {
    const int64_t chunks = group_norm_chunks(p), rows = chunk_rows(p), size = p.channels / p.groups;
    const float* const first = partials + image * chunks * 3 * p.channels;
    float* const to = coefficients + image * 3 * p.channels;
    const auto each = [&](int64_t group, auto body) {
        for (int64_t i = 0; i < chunks; ++i)
            for (int64_t c = group * size; c < (group + 1) * size; ++c)
                body(static_cast<double>(std::min(rows, p.hw - i * rows)),
                     static_cast<double>(first[i * 3 * p.channels + c]) + first[(i * 3 + 1) * p.channels + c],
                     first[(i * 3 + 2) * p.channels + c]);
    };
    for (int64_t group = 0; group < p.groups; ++group) {
        double sum = 0, square = 0;
        const double count = static_cast<double>(p.hw * size);
        each(group, [&](double n, double mean, double) { sum += n * mean; });
        const double mean = sum / count;
        each(group, [&](double n, double part, double m2) { square += m2 + n * (part - mean) * (part - mean); });
        const double inverse = 1 / std::sqrt(square / count + p.epsilon);
        for (int64_t c = group * size; c < (group + 1) * size; ++c) {
            const double scale = inverse * affine_at(p, p.gamma, c);
            to[c] = static_cast<float>(mean);
            to[p.channels + c] = static_cast<float>(scale);
            to[2 * p.channels + c] = static_cast<float>(affine_at(p, p.beta, c) - (mean - to[c]) * scale);
        }
    }
}

SDORT_CPU_CLONES void group_norm_measure_f32(const Problem& p, size_t task, float* partials) { measure<float>(p, task, partials); }
SDORT_CPU_CLONES void group_norm_measure_f16(const Problem& p, size_t task, float* partials) { measure<_Float16>(p, task, partials); }
SDORT_CPU_CLONES void group_norm_apply_f32(const Problem& p, size_t task, const float* c) { apply<float>(p, task, c); }
SDORT_CPU_CLONES void group_norm_apply_f16(const Problem& p, size_t task, const float* c) { apply<_Float16>(p, task, c); }
SDORT_CPU_CLONES void group_norm_planes_f32(const Problem& p, size_t task) { planes<float>(p, task); }
SDORT_CPU_CLONES void group_norm_planes_f16(const Problem& p, size_t task) { planes<_Float16>(p, task); }

}  // namespace sdort::cpu
