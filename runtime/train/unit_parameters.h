#pragma once

#include <cstddef>
#include <cstdint>

#include "base/function_ref.h"

namespace terrace {

// The source from which a sampler gets the parameters of a model's units, in the type that
// computes.
class UnitParameters {
 public:
  // A unit whose parameters are in memory.
  struct Turn {
    std::int32_t unit = 0;
    std::byte* parameters = nullptr;  // its flat sequence
    std::byte* tied = nullptr;        // of the head of a tied model: the embedding's
  };

  virtual ~UnitParameters() = default;
  // Calls `use` once for every unit, in order. The memory holds the unit until `use` returns.
  // Another thread may call `use` while the caller waits. Throws what `use` throws, IoError and
  // CorruptData; after that the object can only be destroyed.
  virtual void for_each_unit(FunctionRef<void(const Turn&)> use) = 0;
};

}  // namespace terrace
