#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "base/function_ref.h"

namespace terrace {

// Reads parameters when they are needed.
class ParameterReader {
 public:
  virtual ~ParameterReader() = default;
  // Sets `out` to the bytes of parameters, in the type that computes, from element `begin` of a
  // unit's sequence on. They belong to one expert, or to what the unit has beside experts. To be
  // called during a unit's turn, by the thread that the turn is called on. Throws IoError and
  // CorruptData.
  virtual void read(std::int32_t unit, std::int64_t begin, std::span<std::byte> out) = 0;
};

// The source from which a sampler gets the parameters of a model's units, in the type that
// computes.
class UnitParameters {
 public:
  // A unit whose parameters are in memory.
  struct Turn {
    std::int32_t unit = 0;
    // Its flat sequence. If there is a reader, it ends before the experts, and null means that the
    // reader has all of the unit.
    std::byte* parameters = nullptr;
    std::byte* tied = nullptr;          // of the head of a tied model: the embedding's
    ParameterReader* reader = nullptr;  // null: nothing has to be read
  };

  virtual ~UnitParameters() = default;
  // Calls `use` once for every unit, in order. The memory holds the unit until `use` returns.
  // Another thread may call `use` while the caller waits. Throws what `use` throws, IoError and
  // CorruptData; after that the object can only be destroyed.
  virtual void for_each_unit(FunctionRef<void(const Turn&)> use) = 0;
};

}  // namespace terrace
