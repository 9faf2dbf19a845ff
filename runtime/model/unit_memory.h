#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "kernels/kernel_context.h"
#include "runtime/model/op_role.h"

namespace terrace {

// The places of a group's parameters and of their gradient; null: the op does not touch it.
struct GroupMemory {
  std::byte* parameters = nullptr;
  std::byte* gradient = nullptr;
  GradientMode gradient_mode = GradientMode::kAssign;
};

// The places of a hidden input of a unit and of its gradient, which the unit writes; null: the op
// does not touch it.
struct InputMemory {
  std::byte* hidden = nullptr;
  std::byte* gradient = nullptr;
  GradientMode gradient_mode = GradientMode::kAssign;
};

// The places of the buffers that an op touches. The unit's first group and first input are found by
// role. They are also in `groups` and `inputs`, together with the unit's other groups and inputs.
struct UnitMemory {
  std::array<std::byte*, kRoleCount> buffers{};        // null: the op does not touch it
  std::span<const GroupMemory> groups;                 // by index in UnitModel::groups
  std::span<const InputMemory> inputs;                 // by index in UnitModel::inputs
  std::span<std::byte* const> between;                 // by number
  GradientMode gradient_mode = GradientMode::kAssign;  // of the first group
  float gradient_scale = 1.0F;
  // The factor of gradients of losses that are means over micro-batches and data-parallel ranks:
  // fp16's loss scale, divided by their number.
  float mean_scale = 1.0F;
  std::int64_t kept_rows = 0;  // rows in kKeyValues before those that are computed

  std::byte*& of(Role role) { return buffers[static_cast<std::size_t>(role)]; }
  std::byte* of(Role role) const { return buffers[static_cast<std::size_t>(role)]; }
};

}  // namespace terrace
