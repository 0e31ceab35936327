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

// Whether the matrix kernels compute it: what they leave out is rare, and the general form does it.
inline bool has_matrix_form(const Problem& p, Dtype dtype) {
    const auto fits = [&](const Tensor& t) {
        return t.batch % 8 == 0 && t.row % 8 == 0 && t.head % 8 == 0 && reinterpret_cast<uintptr_t>(t.data) % 16 == 0 &&
               p.batches * t.batch < INT32_MAX;
    };
    if (p.batches * p.queries * p.heads * p.size >= INT32_MAX) return false;
    return dtype == Dtype::kFloat16 && p.size == p.value_size && !p.bias && !p.causal && p.scale > 0 && fits(p.q) && fits(p.k) && fits(p.v);
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
    if (names.empty()) names.push_back("general");
    return names;
}

inline std::vector<std::string> kernels(Dtype dtype, const Device& device) {
    std::vector<std::string> names;
    for (const int width : kGeneralWidths)
        names.push_back(std::string("attention_general_") + suffix(dtype) + "_" + std::to_string(width));
    if (dtype == Dtype::kFloat16)
        for (const Instance& i : instances(device.architecture)) names.push_back(kernel_name(i.size, i.variant));
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

// The heads are the fastest dimension of the grid: on a GPU of eight dies, which take workgroups in turn, the tiles of one
// head meet in one die's cache (where the number of heads is a multiple of eight, as it mostly is).
inline std::vector<Launch> launches(const Problem& p, Dtype dtype, const Device& device, const std::string& variant) {
    if (variant == "general") return general(p, dtype);
    Args args = arguments(p);
    const int64_t heads = p.batches * p.heads, tiles = ceil_div(p.queries, (variant[1] - '0') * 64);
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
