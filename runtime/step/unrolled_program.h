#pragma once

#include <cstdint>
#include <limits>
#include <optional>

#include "runtime/step/program.h"

namespace terrace {

// A program whose repetitions are written out one after the other, with edges. If nothing is
// repeated, it is the program itself.
class UnrolledProgram {
 public:
  // Writes out `times` repetitions at most. With fewer than all it is for checks and simulations,
  // and must not be executed. Borrows the program.
  explicit UnrolledProgram(const Program& program,
                           std::int32_t times = std::numeric_limits<std::int32_t>::max());
  UnrolledProgram(const UnrolledProgram&) = delete;
  UnrolledProgram& operator=(const UnrolledProgram&) = delete;

  const Program& program() const { return own_.has_value() ? *own_ : program_; }

 private:
  const Program& program_;
  std::optional<Program> own_;
};

}  // namespace terrace
