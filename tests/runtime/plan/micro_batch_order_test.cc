#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>

#include "runtime/plan/auto_placement.h"
#include "runtime/plan/order_bound.h"
#include "tests/runtime/step/step_fixture.h"

// With very many micro-batches the planner takes the order that moves less, as usual. Programs of
// micro-batch-major order are the small ones then, and are compiled first.
namespace terrace {
namespace {

using ::testing::Each;
using ::testing::Gt;

TEST(OrderOfVeryManyMicroBatches, IsTheOneThatMovesLess) {
  StepModel model = small_step_model(6, false);
  model.hidden_bytes = 4 * kKiB;  // much less than a block's parameters
  for (UnitModel& unit : model.units) unit.saved_bytes = std::min(unit.saved_bytes, 8 * kKiB);
  std::array<int, 2> chosen{};
  for (const std::int32_t micro_batches : {64, 130, 600}) {
    for (const bool parameters_move : {true, false}) {
      SCOPED_TRACE(testing::Message() << micro_batches << " " << parameters_move);
      PlacementRequest request;
      request.unified = false;
      request.micro_batches = micro_batches;
      request.lookahead = 1;
      if (parameters_move) request.homes[StateClass::kParameters] = Tier::kHost;
      request.order = MicroBatchOrder::kMicroBatchMajor;
      TierBudgets budgets;
      const std::size_t all = plan_step(model, request, {}).ledger[Tier::kDevice].peak_bytes;
      budgets.at(static_cast<std::size_t>(Tier::kDevice)) = parameters_move ? all / 10 * 7 : all;
      const StepPlan micro_batch_major = plan_step(model, request, budgets);
      request.order = MicroBatchOrder::kLayerMajor;
      const StepPlan layer_major = plan_step(model, request, budgets);
      request.order = std::nullopt;
      const StepPlan plan = plan_step(model, request, budgets);
      EXPECT_EQ(moved_bytes(plan.program),
                std::min(moved_bytes(micro_batch_major.program), moved_bytes(layer_major.program)));
      ++chosen.at(static_cast<std::size_t>(plan.policy.order));
    }
  }
  EXPECT_THAT(chosen, Each(Gt(0)));
}

}  // namespace
}  // namespace terrace
