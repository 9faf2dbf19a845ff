#pragma once

#include <cstdint>
#include <exception>
#include <limits>

#include "base/clock.h"

namespace terrace {

// A point of time until which a benchmark may measure.
class Deadline {
 public:
  // A deadline that never comes.
  Deadline() = default;
  static Deadline after(double seconds) {
    return Deadline(SystemClock().now_ns() + static_cast<std::int64_t>(seconds * 1e9));
  }

  bool is_set() const { return end_ns_ != kNever; }
  bool is_over() const { return seconds_left() <= 0; }
  // Returns the seconds until the end; infinite if there is none.
  double seconds_left() const {
    if (!is_set()) return std::numeric_limits<double>::infinity();
    return static_cast<double>(end_ns_ - SystemClock().now_ns()) * 1e-9;
  }
  // Returns the end of `share` of the time that is left.
  Deadline part(double share) const {
    return is_set() ? after(share * seconds_left()) : Deadline();
  }

 private:
  static constexpr std::int64_t kNever = std::numeric_limits<std::int64_t>::max();

  explicit Deadline(std::int64_t end_ns) : end_ns_(end_ns) {}

  std::int64_t end_ns_ = kNever;
};

// Ends a benchmark whose time is over. It is no error: what was measured is kept.
class TimeIsUp : public std::exception {
 public:
  const char* what() const noexcept override {
    return "the time limit of the benchmark has been reached";
  }
};

}  // namespace terrace
