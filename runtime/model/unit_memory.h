#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "kernels/kernel_context.h"
#include "runtime/model/op_role.h"

namespace terrace {

// The places of the buffers that an op touches.
struct UnitMemory {
  std::array<std::byte*, kRoleCount> buffers{};  // null: the op does not touch it
  std::span<std::byte* const> between;           // by number
  GradientMode gradient_mode = GradientMode::kAssign;
  GradientMode tied_gradient_mode = GradientMode::kAssign;
  float gradient_scale = 1.0F;
  std::int64_t kept_rows = 0;  // rows in kKeyValues before those that are computed

  std::byte*& of(Role role) { return buffers[static_cast<std::size_t>(role)]; }
  std::byte* of(Role role) const { return buffers[static_cast<std::size_t>(role)]; }
};

}  // namespace terrace
