#pragma once

#include <gtest/gtest.h>

#include <chrono>
#include <limits>

#include "runtime/step/machine_profile.h"
#include "runtime/step/program.h"
#include "runtime/train/op_times.h"

namespace terrace {

inline bool computes(const Op& op) {
  return op.kind == OpKind::kForward || op.kind == OpKind::kRecompute ||
         op.kind == OpKind::kBackward;
}

// As OpMeasurement::seconds_most: sanitizers and busy machines take long.
inline constexpr double kNoTimeLimit = std::numeric_limits<double>::infinity();

// Measures the ops without a limit of time. Expects that every op of the program that computes,
// updates or sums gets a time, and that each is shorter than the measurement of all ops took.
inline void expect_all_timed(OpMeasurement measurement) {
  measurement.seconds_most = kNoTimeLimit;
  const Program& program = measurement.plan.training.program;
  MachineProfile profile;
  const auto begin = std::chrono::steady_clock::now();
  ASSERT_TRUE(measure_ops(measurement, profile));
  const std::chrono::duration<double> taken = std::chrono::steady_clock::now() - begin;
  for (const Op& op : program.ops) {
    const bool is_of_gradient = op.kind == OpKind::kAccumulate ||
                                op.kind == OpKind::kRoundGradient ||
                                op.kind == OpKind::kNormPartials;
    if (!computes(op) && op.kind != OpKind::kUpdate && !is_of_gradient) continue;
    const auto found = profile.seconds_per_work.find(class_of(program, op));
    ASSERT_NE(found, profile.seconds_per_work.end()) << describe(program, op);
    EXPECT_GT(found->second, 0) << describe(program, op);
    EXPECT_LT(found->second * work_of(program, op), taken.count()) << describe(program, op);
  }
}

}  // namespace terrace
