#pragma once

#include <cstdint>

namespace terrace {

// Time on the wall and on all processors of this process since it was made.
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
