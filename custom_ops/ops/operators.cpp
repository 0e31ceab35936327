#include "operator.h"

namespace sdort {

extern const Operator kBiasAdd, kBiasSplitGelu, kSkipLayerNorm;
extern const Operator kGroupNorm, kSkipGroupNorm, kExtendedGroupNorm;

const std::vector<const Operator*>& operators() {
    static const std::vector<const Operator*> all{
        &kBiasAdd, &kBiasSplitGelu, &kSkipLayerNorm,
        &kGroupNorm, &kSkipGroupNorm, &kExtendedGroupNorm,
    };
    return all;
}

}  // namespace sdort
