#pragma once

#include <algorithm>
#include <string>
#include <vector>

#include "attention.h"
#include "driver/error.h"
#include "driver/launch.h"

namespace sdort::attention {

// What kernels are instantiated for (kernel.h, general_kernel.h).
inline constexpr int kGeneralWidths[] = {64, 192, 512};  // of Y that one workgroup of the general form computes
constexpr int kGeneralTile = 32, kGeneralBlock = 256;
constexpr int kShortest = 80;  // most keys of a "whole" kernel

struct Instance {
    int size;
    const char* variant;
};

inline constexpr int kFlashWgmmaSizes[] = {40, 64, 80};  // of heads (flash_wgmma_kernel.h)

// Of a head size, those come first that are best where the device is full: 32 queries a wave read shared memory half as
// often, and 32 keys a step leave registers for four workgroups at a time. (Not measured on AMD GPUs.)
inline std::vector<Instance> instances(const std::string& architecture) {
    std::vector<Instance> all{
        {40, "q1_whole"},   {64, "q1_whole"},   {80, "q1_whole"},   {96, "q1_whole"},    {128, "q1_whole"},
        {40, "q2_k64_s32"}, {40, "q1_k64_s64"}, {64, "q1_k64_s64"}, {80, "q1_k64_s64"},
        {96, "q1_k32_s32"}, {128, "q1_k32_s32"}, {160, "q1_k32_s32"},
    };
    if (architecture.rfind("gfx11", 0) != 0) {
        all.insert(all.begin() + 5, {64, "q2_k64_s32"});
        all.push_back({80, "q2_k32_s32"});
    }
    return all;
}

inline bool is_whole(const std::string& variant) { return variant.find("whole") != std::string::npos; }

inline std::string kernel_name(int size, const std::string& variant) {
    return "attention_f16_" + std::to_string(size) + "_" + variant;
}

// Whether rows lie as 16-byte accesses with offsets of 32 bits want them.
inline bool strides_fit(const Problem& p) {
    const auto fits = [&](const Tensor& t) {
        return t.batch % 8 == 0 && t.row % 8 == 0 && t.head % 8 == 0 && reinterpret_cast<uintptr_t>(t.data) % 16 == 0 &&
               p.batches * t.batch < INT32_MAX && t.row < 1 << 24;
    };
    return std::max(p.queries, p.keys) < 1 << 24 && p.batches * p.queries * p.heads * p.value_size < INT32_MAX && fits(p.q) &&
           fits(p.k) && fits(p.v);
}

// Whether the matrix kernels compute it: what they leave out is rare, and the general form does it.
inline bool has_matrix_form(const Problem& p, Dtype dtype) {
    return dtype == Dtype::kFloat16 && p.size == p.value_size && !p.bias && !p.causal && p.scale > 0 && strides_fit(p);
}

// Whether the kernels of wide heads compute it, of which no registers hold the sums of the others.
inline bool has_wide_form(const Problem& p, Dtype dtype) {
    return dtype == Dtype::kFloat16 && p.size > 160 && p.size % 32 == 0 && p.value_size % 8 == 0 && !p.bias && !p.causal &&
           p.scale > 0 && strides_fit(p);
}

// How the queries of all heads are cut into parts, tiles of kWideTile, whose weights the workspace holds: few enough that those
// stay small, enough that two workgroups of `values` a compute unit find work.
struct WideParts {
    int64_t tiles;  // of one head
    int64_t part;   // tiles of a part
    int64_t pitch;
    int64_t rows() const { return part * kWideTile; }
    int64_t bytes() const { return rows() * (2 * pitch + 8 * (pitch / kWideSegment)); }
};

constexpr int64_t kWideBytes = int64_t{128} << 20;  // of weights

inline WideParts wide_parts(const Problem& p, const Device& device) {
    WideParts parts{ceil_div(p.queries, kWideTile), 0, ceil_div(p.keys, kWideTile) * kWideTile};
    const int64_t all = p.batches * p.heads * parts.tiles;
    const int64_t blocks = kWideTile / kWideQueries * ceil_div(p.value_size, kWideTile);  // of a tile
    const int64_t most = std::max<int64_t>(1, kWideBytes / (2 * kWideTile * parts.pitch));
    const int64_t part = std::min({all, most, ceil_div(2 * device.compute_units, blocks)});
    parts.part = ceil_div(all, ceil_div(all, part));
    return parts;
}

// Bytes of device memory that the launches of a variant need, aligned to 16.
inline int64_t workspace_bytes(const Problem& p, const Device& device, const std::string& variant) {
    return variant.rfind("wide", 0) == 0 ? wide_parts(p, device).bytes() : 0;
}

// Legal variants, the one for this device first.
inline std::vector<std::string> variants(const Problem& p, Dtype dtype, const Device& device) {
    std::vector<std::string> names;
    if (has_matrix_form(p, dtype))
        for (const Instance& i : instances(device.architecture))
            if (i.size == p.size && (!is_whole(i.variant) || p.keys <= kShortest)) names.push_back(i.variant);
    // Half the queries a workgroup where whole ones would leave multiprocessors idle.
    const bool few = p.batches * p.heads * ceil_div(p.queries, 128) < device.compute_units;
    if (few) std::stable_partition(names.begin(), names.end(), [](const std::string& name) { return name[1] == '1'; });
    // Fastest wherever it was measured, which is with more keys than a "whole" kernel takes: that one stays before it.
    if (device.wgmma && has_matrix_form(p, dtype) && std::ranges::find(kFlashWgmmaSizes, p.size) != std::end(kFlashWgmmaSizes))
        names.insert(names.begin() + (p.keys <= kShortest), "flash_wgmma");
    if (names.empty() && has_wide_form(p, dtype)) {
        if (device.wgmma && p.size % 64 == 0) names.push_back("wide_wgmma");
        names.push_back("wide");
    }
    if (names.empty()) names.push_back("general");
    return names;
}

// Of any of the variants.
inline int64_t workspace_bytes(const Problem& p, Dtype dtype, const Device& device) {
    int64_t most = 0;
    for (const std::string& variant : variants(p, dtype, device)) most = std::max(most, workspace_bytes(p, device, variant));
    return most;
}

inline std::vector<std::string> kernels(Dtype dtype, const Device& device) {
    std::vector<std::string> names;
    for (const int width : kGeneralWidths)
        names.push_back(std::string("attention_general_") + suffix(dtype) + "_" + std::to_string(width));
    if (dtype == Dtype::kFloat16)
        for (const Instance& i : instances(device.architecture)) names.push_back(kernel_name(i.size, i.variant));
    if (dtype == Dtype::kFloat16) names.insert(names.end(), {"attention_wide_scores_f16", "attention_wide_values_f16"});
    if (dtype == Dtype::kFloat16 && device.wgmma) {
        names.insert(names.end(), {"attention_wide_scores_wgmma_f16", "attention_wide_values_wgmma_f16"});
        for (const int size : kFlashWgmmaSizes) names.push_back(kernel_name(size, "flash_wgmma"));
    }
    return names;
}

inline Args arguments(const Problem& p) {
    constexpr double log2e = 1.44269504088896340736;
    return {p.q, p.k, p.v, p.bias, p.y, static_cast<int32_t>(p.heads), static_cast<int32_t>(p.queries),
            static_cast<int32_t>(p.keys), static_cast<int32_t>(p.size), static_cast<int32_t>(p.value_size), p.causal,
            static_cast<float>(p.scale * log2e), 1};
}

inline std::vector<Launch> general(const Problem& p, Dtype dtype) {
    int width = 512;
    for (const int candidate : kGeneralWidths)
        if (p.value_size <= candidate) {
            width = candidate;
            break;
        }
    Args args = arguments(p);
    args.slices = static_cast<int32_t>(ceil_div(p.value_size, width));
    const std::string name = std::string("attention_general_") + suffix(dtype) + "_" + std::to_string(width);
    return {make_launch(name, p.batches * p.heads, ceil_div(p.queries, kGeneralTile) * args.slices, kGeneralBlock, args)};
}

inline std::vector<Launch> wide(const Problem& p, const Device& device, bool wgmma) {
    const WideParts parts = wide_parts(p, device);
    const auto whole = [](int64_t value) { return static_cast<int32_t>(value); };
    char* const weights = static_cast<char*>(p.workspace);
    float* const shifts = reinterpret_cast<float*>(weights + 2 * parts.rows() * parts.pitch);
    WideArgs args{p.q, p.k, p.v, p.y, weights, shifts, shifts + parts.rows() * (parts.pitch / kWideSegment), whole(p.heads),
                  whole(p.queries), whole(p.keys), whole(p.size), whole(p.value_size), whole(parts.tiles), 0,
                  whole(parts.pitch), whole(parts.rows()), arguments(p).scale};
    std::vector<Launch> launches;
    const int64_t all = p.batches * p.heads * parts.tiles, threads = 4 * device.wave;
    for (int64_t first = 0; first < all; first += parts.part) {
        const int64_t tiles = std::min(parts.part, all - first);
        args.first = whole(first);
        if (wgmma) {
            launches.push_back(make_launch("attention_wide_scores_wgmma_f16", ceil_div(parts.pitch, kWgmmaKeys), tiles,
                                           kWgmmaThreads, args, kWgmmaScoresBytes));
            launches.push_back(make_launch("attention_wide_values_wgmma_f16", ceil_div(p.value_size, kWideTile), tiles,
                                           kWgmmaThreads, args, kWgmmaValuesBytes));
            continue;
        }
        launches.push_back(make_launch("attention_wide_scores_f16", parts.pitch / kWideTile, tiles, threads, args));
        launches.push_back(make_launch("attention_wide_values_f16", ceil_div(p.value_size, kWideTile),
                                       tiles * (kWideTile / kWideQueries), threads, args));
    }
    return launches;
}

// The heads are the fastest dimension of the grid: on a GPU of eight dies, which take workgroups in turn, the tiles of one
// head meet in one die's cache (where the number of heads is a multiple of eight, as it mostly is).
inline std::vector<Launch> launches(const Problem& p, Dtype dtype, const Device& device, const std::string& variant) {
    if (variant == "general") return general(p, dtype);
    if (variant == "wide" || variant == "wide_wgmma") return wide(p, device, variant == "wide_wgmma");
    Args args = arguments(p);
    const int64_t heads = p.batches * p.heads;
    if (variant == "flash_wgmma")
        return {make_launch(kernel_name(static_cast<int>(p.size), variant), heads, ceil_div(p.queries, kFlashWgmmaQueries),
                            kWgmmaThreads, args, static_cast<uint32_t>(1024 + ceil_div(p.size, 64) * kFlashWgmmaBytes))};
    const int64_t tiles = ceil_div(p.queries, (variant[1] - '0') * 64);
    // With all keys at hand a workgroup goes on with further queries; four a multiprocessor fill the device.
    args.slices = static_cast<int32_t>(is_whole(variant) ? std::min(tiles, ceil_div(4 * device.compute_units, heads)) : tiles);
    return {make_launch(kernel_name(static_cast<int>(p.size), variant), heads, args.slices, 4 * device.wave, args)};
}

inline bool is_empty(const Problem& p) { return p.batches * p.queries * p.value_size == 0; }

inline std::string key(const Problem& p, Dtype dtype) {
    return std::string("attention ") + suffix(dtype) + " n=" + std::to_string(p.batches) + " s=" + std::to_string(p.queries) +
           " l=" + std::to_string(p.keys) + " h=" + std::to_string(p.heads) + " d=" + std::to_string(p.size);
}

}  // namespace sdort::attention
