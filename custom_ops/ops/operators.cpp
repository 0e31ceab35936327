#include "operator.h"

namespace sdort {

extern const Operator kBiasAdd;

const std::vector<const Operator*>& operators() {
    static const std::vector<const Operator*> all{
        &kBiasAdd,
    };
    return all;
}

}  // namespace sdort
