#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "optim/state_format.h"

namespace terrace {

// The states of each parameter: its exact value, and what the update rule keeps for it.
enum class StateField : std::uint8_t { kMaster, kSlot0, kSlot1 };
inline constexpr std::array<StateField, 1 + kMostSlots> kStateFields = {
    StateField::kMaster, StateField::kSlot0, StateField::kSlot1};

inline constexpr StateField field_of_slot(std::size_t slot) { return kStateFields.at(1 + slot); }
// Returns the number of the slot that a field is; none where it is not a slot of an update rule.
inline constexpr std::optional<std::size_t> slot_of(StateField field) {
  const bool is_slot = field == StateField::kSlot0 || field == StateField::kSlot1;
  return is_slot ? std::optional(static_cast<std::size_t>(field) - 1) : std::nullopt;
}
// Returns the fields that there are with an update rule of `slots` slots.
inline std::vector<StateField> state_fields(std::size_t slots) {
  std::vector<StateField> fields;
  for (const StateField field : kStateFields) {
    const std::optional<std::size_t> slot = slot_of(field);
    if (!slot || *slot < slots) fields.push_back(field);
  }
  return fields;
}

}  // namespace terrace
