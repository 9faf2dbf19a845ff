#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "runtime/step/step_model.h"

// The names of units for people. Blocks are counted from 0.
namespace terrace {

// Returns "the embedding", "the head" or "block 3".
std::string name_of_unit(const StepModel& model, std::int32_t unit);

// Returns the unit that a user means with "embedding", "head" or the number of a block; none if
// there is no such unit.
std::optional<std::int32_t> find_unit(const StepModel& model, std::string_view name);

}  // namespace terrace
