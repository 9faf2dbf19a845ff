#pragma once

#include <cstdint>
#include <limits>
#include <optional>

#include "runtime/step/program.h"

namespace terrace {

// A program with its repeated ops listed as often as a run does them, one repetition behind the
// other. An executor needs it, and so do checks that follow every op. A program without repeated
// ops is taken as it is.
class UnrolledProgram {
 public:
  // Lists the repeated ops `times` times at most. Borrows the program.
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
