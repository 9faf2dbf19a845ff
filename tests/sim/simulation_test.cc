#include "tests/sim/simulation.h"

#include <gtest/gtest.h>

#include "tests/sanitized.h"
#include "tests/sim/sim_seeds.h"

namespace terrace {
namespace {

TEST(Simulation, SeedsHold) { expect_seeds_hold(0, kSanitized ? 60 : 500); }

TEST(Simulation, ASeedGivesTheSameHistoryAgain) {
  for (std::uint64_t seed = 0; seed < 10; ++seed) {
    EXPECT_EQ(simulate(seed).history, simulate(seed).history) << seed;
  }
  EXPECT_NE(simulate(1).history, simulate(2).history);
}

// A harness that finds nothing proves nothing, so each of these bugs must be found within kSeeds
// seeds.
class PlantedBugs : public ::testing::TestWithParam<PlantedBug> {};

TEST_P(PlantedBugs, AreFoundAndReplayed) {
  constexpr std::uint64_t kSeeds = 150;
  for (std::uint64_t seed = 0; seed < kSeeds; ++seed) {
    const SimOutcome outcome = simulate(seed, GetParam());
    if (outcome.problem.empty()) continue;
    RecordProperty("found", outcome.problem);
    EXPECT_NE(outcome.problem.find("TERRACE_SIM_SEED=" + std::to_string(seed)), std::string::npos);
    EXPECT_EQ(simulate(seed, GetParam()).problem, outcome.problem);
    return;
  }
  ADD_FAILURE() << name_of(GetParam()) << " is not found";
}

INSTANTIATE_TEST_SUITE_P(
    Simulation, PlantedBugs,
    ::testing::Values(PlantedBug::kLostWriteBack, PlantedBug::kMissingReuseEdge,
                      PlantedBug::kStaleExtent, PlantedBug::kScalarsOfNextStep,
                      PlantedBug::kDroppedCompletion, PlantedBug::kUnsyncedManifest,
                      PlantedBug::kUnsyncedDirectory, PlantedBug::kUncheckedSum,
                      PlantedBug::kSwallowedFailure),
    [](const auto& info) {
      std::string name(name_of(info.param));
      for (char& c : name) {
        if (c == ' ' || c == '-') c = '_';
      }
      return name;
    });

}  // namespace
}  // namespace terrace
