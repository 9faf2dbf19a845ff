#pragma once

#include <cstdint>

#include "runtime/model/parameter_layout.h"

namespace terrace {

// Returns the unit as a tensor-parallel rank has it: its part of each tensor of `whole`, one after
// the other, in the order and with the padding that UnitLayout describes. `ranks` is the number of
// data-parallel ranks, and `storage` says how frozen matrices are kept.
UnitLayout arranged(const UnitLayout& whole, const TensorSplit& split, std::int32_t ranks,
                    const BaseStorage& storage = BaseStorage());

}  // namespace terrace
