#pragma once

#include <cstdint>

namespace terrace {

// Steps `first` to `last`, counted from 1, both included.
struct StepRange {
  std::int64_t first = 1;
  std::int64_t last = 1;
};

}  // namespace terrace
