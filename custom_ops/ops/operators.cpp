#include "operator.h"

namespace sdort {

extern const Operator kBiasAdd, kBiasSplitGelu, kNhwcConv, kSkipLayerNorm;
extern const Operator kGroupNorm, kSkipGroupNorm, kExtendedGroupNorm;
extern const Operator kMultiHeadAttention;

const std::vector<const Operator*>& operators() {
    static const std::vector<const Operator*> all{
        &kBiasAdd, &kBiasSplitGelu, &kNhwcConv, &kSkipLayerNorm,
        &kGroupNorm, &kSkipGroupNorm, &kExtendedGroupNorm,
        &kMultiHeadAttention,
    };
    return all;
}

}  // namespace sdort
