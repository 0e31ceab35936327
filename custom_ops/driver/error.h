#pragma once

#include <stdexcept>
#include <string>

namespace sdort {

// Anything that a user must hear of. Becomes an OrtStatus with the operator's and the node's name in front.
struct Error : std::runtime_error {
    using std::runtime_error::runtime_error;
};

}  // namespace sdort
