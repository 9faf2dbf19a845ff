#pragma once

#include <hwy/highway.h>

#include <cstdint>
#include <vector>

namespace terrace::test {

// One bit for each instruction set that is compiled in and that this processor has.
inline std::vector<std::int64_t> usable_targets() {
  hwy::SetSupportedTargetsForTest(0);
  std::vector<std::int64_t> targets;
  for (std::int64_t left = hwy::SupportedTargets() & HWY_TARGETS; left != 0; left &= left - 1) {
    targets.push_back(left & -left);
  }
  return targets;
}

// Runs code on one instruction set while it lives.
class OnTarget {
 public:
  explicit OnTarget(std::int64_t target) { hwy::SetSupportedTargetsForTest(target); }
  ~OnTarget() { hwy::SetSupportedTargetsForTest(0); }
  OnTarget(const OnTarget&) = delete;
  OnTarget& operator=(const OnTarget&) = delete;
};

}  // namespace terrace::test
