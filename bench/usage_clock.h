#pragma once

#include <cstdint>

namespace terrace {

// Wall-clock time, and this process's time on all processors, since the clock was made.
class UsageClock {
 public:
  UsageClock();

  double wall_seconds() const;
  double cpu_seconds() const;

 private:
  std::int64_t wall_begin_ns_;
  double cpu_begin_s_;
};

}  // namespace terrace
