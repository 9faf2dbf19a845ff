#pragma once

#include <gtest/gtest.h>
#include <hwy/highway.h>

#include <cstdint>
#include <vector>

#include "kernels/kernel_context.h"
#include "memory/host/worker_arena.h"
#include "tests/sanitized.h"

namespace terrace::test {

// Returns one bit for each instruction set that is compiled in and that this processor has, the
// best one first. Under the sanitizers these are the best and the least only: the sets between them
// differ only in width.
inline std::vector<std::int64_t> usable_targets() {
  hwy::SetSupportedTargetsForTest(0);
  std::vector<std::int64_t> targets;
  for (std::int64_t left = hwy::SupportedTargets() & HWY_TARGETS; left != 0; left &= left - 1) {
    targets.push_back(left & -left);
  }
  if (kSanitized && targets.size() > 2) targets = {targets.front(), targets.back()};
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

// Calls body(context) on each instruction set, with a context of `threads` threads.
template <typename Body>
void on_every_target(int threads, const Body& body) {
  WorkerArena workers(threads);
  KernelContext context;
  context.workers = &workers;
  for (const std::int64_t target : usable_targets()) {
    SCOPED_TRACE(hwy::TargetName(target));
    const OnTarget on_target(target);
    body(context);
  }
}

}  // namespace terrace::test
