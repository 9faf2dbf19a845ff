#pragma once

#include <cstddef>
#include <span>

#include "runtime/step/lane_executor.h"

namespace terrace {

// Finds the bytes of ops in memory. Borrows both.
struct OpBytes {
  std::span<std::byte> of(const Access& access) const { return bytes_of(program, memory, access); }
  // Returns the bytes of the op's access with this role; null if there is none.
  std::byte* data(const Op& op, Role role) const {
    const Access* access = op.find(role);
    return access == nullptr ? nullptr : of(*access).data();
  }

  const Program& program;
  const ExecutorMemory& memory;
};

}  // namespace terrace
