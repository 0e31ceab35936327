// A matrix instruction by its documentation: what lanes pass, the product in full, what each lane gets.
#pragma once

#include "device.h"

namespace sdort::matrix {

struct Place {
    int lane, index;
};

// Layout gives the instruction's shape (kRows, kColumns, kDepth) and where its operands lie:
//   a(row, k), b(k, column): the lane and the index of the half; row(lane, i), column(lane, i): of the sum i of a lane
template <class Layout, class A, class B, class D>
inline D simulated_product(const A& a, const B& b, const D& sums) {
    struct Both {
        A a;
        B b;
    };
    const Both mine{a, b};
    const Both* const all = static_cast<const Both*>(simulator::exchange(&mine, sizeof mine));
    const auto value = [](const void* operand, int index) {
        half result;
        memcpy(&result, static_cast<const char*>(operand) + 2 * index, 2);
        return static_cast<float>(result);
    };
    D result = sums;
    for (size_t i = 0; i < sizeof(D) / sizeof(float); ++i) {
        const int row = Layout::row(lane_index(), i), column = Layout::column(lane_index(), i);
        for (int k = 0; k < Layout::kDepth; ++k) {
            const Place left = Layout::a(row, k), right = Layout::b(k, column);
            result.values[i] += value(&all[left.lane].a, left.index) * value(&all[right.lane].b, right.index);
        }
    }
    return result;
}

// Every lane's word, as `lane` passed it.
inline uint32_t shuffle_word(uint32_t word, int lane) {
    return static_cast<const uint32_t*>(simulator::exchange(&word, sizeof word))[lane];
}

}  // namespace sdort::matrix
