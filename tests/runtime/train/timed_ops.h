#pragma once

#include <gtest/gtest.h>

#include <cmath>

#include "runtime/step/machine_profile.h"
#include "runtime/step/program.h"

namespace terrace {

inline bool computes(const Op& op) {
  return op.kind == OpKind::kForward || op.kind == OpKind::kRecompute ||
         op.kind == OpKind::kBackward;
}

// Expects that the profile has a time for every op of the program that computes, updates or sums.
inline void expect_all_timed(const Program& program, const MachineProfile& profile) {
  for (const Op& op : program.ops) {
    const bool is_of_gradient = op.kind == OpKind::kAccumulate ||
                                op.kind == OpKind::kRoundGradient ||
                                op.kind == OpKind::kNormPartials;
    if (!computes(op) && op.kind != OpKind::kUpdate && !is_of_gradient) continue;
    const auto found = profile.seconds_per_work.find(class_of(program, op));
    ASSERT_NE(found, profile.seconds_per_work.end()) << describe(program, op);
    EXPECT_GT(found->second, 0) << describe(program, op);
    EXPECT_TRUE(std::isfinite(found->second * work_of(program, op))) << describe(program, op);
  }
}

}  // namespace terrace
