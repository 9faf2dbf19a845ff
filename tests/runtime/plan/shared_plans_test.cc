#include "runtime/plan/shared_plans.h"

#include <gtest/gtest.h>

#include <atomic>
#include <thread>
#include <vector>

#include "base/error.h"
#include "tests/runtime/step/step_fixture.h"

namespace terrace {
namespace {

StepModel at_stage(std::int32_t stage) {
  StepModel model = small_step_model(2, false);
  model.pipeline.stage = stage;
  return model;
}

TEST(SharedPlans, AreMadeOncePerStage) {
  SharedPlans plans;
  std::atomic<int> made{0};
  const auto ask = [&](std::int32_t stage) {
    return plans.get(at_stage(stage), {}, [&] {
      ++made;
      StepPlan plan;
      plan.policy.lookahead = 10 + stage;
      return plan;
    });
  };
  std::vector<std::jthread> ranks;
  std::atomic<int> right{0};
  for (std::int32_t rank = 0; rank < 8; ++rank) {
    ranks.emplace_back([&, rank] {
      if (ask(rank % 2).policy.lookahead == 10 + rank % 2) ++right;
    });
  }
  ranks.clear();
  EXPECT_EQ(made, 2);
  EXPECT_EQ(right, 8);
  plans.clear();
  ask(0);
  EXPECT_EQ(made, 3);
}

TEST(SharedPlans, AreRefusedToAll) {
  SharedPlans plans;
  const auto refuse = []() -> StepPlan { throw OutOfMemory("does not fit", "raise it"); };
  for (int rank = 0; rank < 2; ++rank) {
    EXPECT_THROW(plans.get(at_stage(0), {}, refuse), OutOfMemory);
  }
}

// A later rank takes the choices of the first one, whichever rank has made them.
TEST(SharedPlans, GiveTheProgramsOfRanksThatPlanAlone) {
  PlacementRequest request;
  request.has_nvme = true;
  TierBudgets budgets;
  budgets.at(static_cast<std::size_t>(Tier::kHost)) = 2 * kMiB;
  SharedPlans plans;
  for (const std::int32_t rank : {2, 0, 1}) {
    const StepModel model = divided(small_step_model(6, true), {2, 3, rank});
    const StepPlan alone = plan_step(model, request, budgets);
    EXPECT_EQ(plan_step(model, request, budgets, &plans).program, alone.program) << rank;
  }
}

}  // namespace
}  // namespace terrace
