#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <cstdlib>
#include <string>

#include "tests/sim/simulation.h"

namespace terrace {

// Simulates `count` seeds from `first` on; with TERRACE_SIM_SEED set, only that seed.
inline void expect_seeds_hold(std::uint64_t first, std::uint64_t count) {
  const char* replayed = std::getenv("TERRACE_SIM_SEED");
  if (replayed != nullptr) {
    first = std::stoull(replayed);
    count = 1;
  }
  SimOutcome sum;
  int wrong = 0;
  for (std::uint64_t seed = first; seed < first + count && wrong < 5; ++seed) {
    const SimOutcome outcome = simulate(seed);
    if (!outcome.problem.empty()) ++wrong;
    EXPECT_EQ(outcome.problem, "");
    sum.errors += outcome.errors;
    sum.power_cuts += outcome.power_cuts;
    sum.checkpoints += outcome.checkpoints;
  }
  if (count < 100 || wrong > 0) return;
  // The seeds bring enough errors, power cuts and checkpoints.
  EXPECT_GT(sum.errors, static_cast<int>(count / 20));
  EXPECT_GT(sum.power_cuts, static_cast<int>(count / 10));
  EXPECT_GT(sum.checkpoints, static_cast<int>(2 * count));
}

}  // namespace terrace
