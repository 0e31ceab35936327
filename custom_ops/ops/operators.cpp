#include "operator.h"

namespace sdort {

extern const Operator kBiasAdd;
extern const Operator kGroupNorm, kSkipGroupNorm, kExtendedGroupNorm;

const std::vector<const Operator*>& operators() {
    static const std::vector<const Operator*> all{
        &kBiasAdd,
        &kGroupNorm, &kSkipGroupNorm, &kExtendedGroupNorm,
    };
    return all;
}

}  // namespace sdort
