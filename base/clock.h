#pragma once

#include <cstdint>

namespace terrace {

// Monotonic time. Tests and simulations use a virtual clock. Thread-safe.
class Clock {
 public:
  virtual ~Clock() = default;
  virtual std::int64_t now_ns() const = 0;
};

class SystemClock final : public Clock {
 public:
  std::int64_t now_ns() const override;
};

}  // namespace terrace
