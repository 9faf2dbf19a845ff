#pragma once

#include <algorithm>
#include <cstdint>

#include "runtime/step/lane_executor.h"

namespace terrace {

// Adds up the seconds during which at least one of a lane's ops was at work, given their times in
// the order of their starts.
class CoveredTime {
 public:
  // Time before `from_ns` does not count.
  explicit CoveredTime(std::int64_t from_ns = 0) : until_ns_(from_ns) {}

  void add(const OpTime& time) {
    const std::int64_t begin = std::max(time.start_ns, until_ns_);
    if (time.end_ns > begin) covered_ns_ += time.end_ns - begin;
    until_ns_ = std::max(until_ns_, time.end_ns);
  }
  double seconds() const { return static_cast<double>(covered_ns_) * 1e-9; }

 private:
  std::int64_t covered_ns_ = 0;
  std::int64_t until_ns_ = 0;
};

}  // namespace terrace
