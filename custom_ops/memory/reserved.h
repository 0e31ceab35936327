// A range of addresses that gets memory from its beginning on, piece by piece: of the host, or of a GPU by its driver's
// virtual memory management.
#pragma once

#include <cstddef>
#include <memory>

#include "direct/direct.h"

namespace sdort {

class Reserved {
public:
    virtual ~Reserved() = default;

    // Throws Error: there is no such driver or device, or it has no virtual memory management.
    static std::unique_ptr<Reserved> make(Place place, int device);

    char* begin() const { return begin_; }
    // What memory is given in, in bytes.
    size_t granularity() const { return granularity_; }
    // Memory for `bytes` more, a multiple of the granularity. False where there is none left.
    virtual bool extend(size_t bytes) = 0;

protected:
    char* begin_ = nullptr;
    size_t granularity_ = 0, reserved_ = 0, used_ = 0;
};

}  // namespace sdort
