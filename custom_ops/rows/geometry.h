// How kernels of rows are cut into blocks, for host code and tests. Every operator has, in its namespace (geometry.h):
//
//   key(problem, dtype)                           what the tuning table knows a problem by: all that its speed depends on
//   variants(problem, dtype, device)              names of what computes it on that device, the geometry's own choice first
//   launches(problem, dtype, device, variant)     the launches of one
//
// An operator over rows has a Problem with kName, how its kernels' names begin; rows, their number; width, the elements of
// an output row. The first of the three, and is_empty, follow from that. The others are of one of two forms, or its own:
//
//   columns   a thread owns one column of 16 bytes and walks rows: for what needs no other element. All three functions are
//             here for a Problem whose Args, the kernel's arguments, are what it says and Columns: struct Args : Problem, Columns
//   held      lanes own a row and keep it in registers: for what needs a sum over the row (skip_layer_norm/geometry.h)
#pragma once

#include <algorithm>
#include <string>
#include <tuple>
#include <type_traits>
#include <vector>

#include "driver/error.h"
#include "driver/launch.h"
#include "rows/rows.h"

namespace sdort {

template <class Problem>
concept OverRows = requires(const Problem& p) {
    p.rows * p.width;
    Problem::kName;
};

bool is_empty(const OverRows auto& p) { return p.rows * p.width == 0; }

std::string key(const OverRows auto& p, Dtype dtype) {
    return std::string(p.kName) + " " + suffix(dtype) + " rows=" + std::to_string(p.rows) + " width=" + std::to_string(p.width);
}

namespace rows {

// The kernel of SDORT_ROW_KERNEL(kName, variant, ...).
template <class Args>
std::vector<Launch> launches(const OverRows auto& p, Dtype dtype, const std::string& variant, int64_t blocks, const Args& args,
                             int threads = kThreads) {
    const std::string kernel = std::string(p.kName) + "_" + suffix(dtype) + "_" + variant;
    return {make_launch(kernel, static_cast<uint32_t>(blocks), 1, static_cast<uint32_t>(threads), args)};
}

// Elements of an access of 16 bytes.
constexpr int64_t lanes_of(Dtype dtype) { return 16 / size_of(dtype); }

// "vector", or "narrow" where 16 bytes do not divide the width: an element at a time.
inline std::vector<std::string> column_variants(const OverRows auto& p, Dtype dtype) {
    return {p.width % lanes_of(dtype) == 0 ? "vector" : "narrow"};
}

// Enough blocks to fill the device eight times; beyond that a block walks on.
inline Columns columns(const OverRows auto& p, Dtype dtype, const Device& device, const std::string& variant) {
    const int64_t row = p.width / (variant == "narrow" ? 1 : lanes_of(dtype));
    const int64_t vectors = p.rows * row;
    const int64_t blocks = std::min<int64_t>(ceil_div(vectors, kThreads), 8 * device.compute_units);
    // A whole number of rows, so that a thread meets the same column in every row; at least one row.
    const int64_t stride = std::max<int64_t>(1, blocks * kThreads / row) * row;
    if (stride > UINT32_MAX) throw Error("rows of 2^32 elements or more are not supported");
    return {vectors, static_cast<uint32_t>(row), static_cast<uint32_t>(stride)};
}

inline std::string name_of(const Held& form) { return "l" + std::to_string(form.lanes) + "v" + std::to_string(form.vectors); }

// "l<lanes a row>v<vectors a lane>": every form that holds a row and leaves no lane's last vector without one. Those that
// use three quarters of their room come first, and of them the ones with the fewest vectors a lane: a short chain of dependent
// work is worth more than full lanes. Where rows are few, most lanes first: each has the less to do after its loads, which is
// what small tensors wait for. "wide" where none holds a row: a wave that reads it again for every pass.
inline std::vector<std::string> held_variants(const OverRows auto& p, Dtype dtype, const Device& device) {
    const int64_t needed = p.width % lanes_of(dtype) == 0 ? p.width / lanes_of(dtype) : 0;
    std::vector<Held> forms;
    for (const Held& form : kHeld)
        if (needed <= form.lanes * form.vectors && needed > form.lanes * (form.vectors > 3 ? 3 : form.vectors - 1))
            forms.push_back(form);
    const bool few = p.rows <= 8 * device.compute_units;
    const auto rank = [&](const Held& form) {
        const bool idle = 4 * needed < 3 * form.lanes * form.vectors;
        return few ? std::tuple(false, -form.lanes, form.vectors) : std::tuple(idle, form.vectors, form.lanes);
    };
    std::sort(forms.begin(), forms.end(), [&](const Held& a, const Held& b) { return rank(a) < rank(b); });
    std::vector<std::string> names;
    for (const Held& form : forms) names.push_back(name_of(form));
    if (names.empty()) names.push_back("wide");
    return names;
}

// Blocks of kHeldThreads that a variant takes.
inline int64_t held_blocks(const OverRows auto& p, const Device& device, const std::string& variant) {
    if (p.rows > UINT32_MAX - kHeldThreads || p.width > UINT32_MAX / 2) throw Error("2^32 rows or more are not supported");
    for (const Held& form : kHeld)
        if (name_of(form) == variant) return ceil_div(p.rows, kHeldThreads / form.lanes);
    return ceil_div(p.rows, kHeldThreads / device.wave);
}

}  // namespace rows

template <class Problem>
concept InColumns = OverRows<Problem> && std::is_base_of_v<rows::Columns, typename Problem::Args>;

std::vector<std::string> variants(const InColumns auto& p, Dtype dtype, const Device&) { return rows::column_variants(p, dtype); }

template <InColumns Problem>
std::vector<Launch> launches(const Problem& p, Dtype dtype, const Device& device, const std::string& variant) {
    const typename Problem::Args args{p, rows::columns(p, dtype, device, variant)};
    return rows::launches(p, dtype, variant, ceil_div(args.stride_vectors, rows::kThreads), args);
}

}  // namespace sdort
