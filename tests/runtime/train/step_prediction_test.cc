#include "runtime/train/step_prediction.h"

#include <gtest/gtest.h>

#include <thread>
#include <vector>

#include "base/bytes.h"
#include "parallel/thread_communicator.h"

namespace terrace {
namespace {

TierPlan plan_of(std::size_t host_bytes) {
  TierPlan plan;
  plan.training.program.use.at(static_cast<std::size_t>(Tier::kHost)).packed_bytes = host_bytes;
  return plan;
}

// The stages of a pipeline need different amounts of memory: a stage with the embedding or the head
// needs more than the others.
TEST(PlannedStep, IsTheSumOfRanksThatAreThreads) {
  const std::vector<std::size_t> host_bytes = {64 * kMiB, 8 * kMiB, 32 * kMiB};
  auto world = make_thread_communicators(3, "world", {});
  std::vector<PlannedStep> planned(3);
  {
    std::vector<std::jthread> threads;
    for (std::size_t r = 0; r < 3; ++r) {
      threads.emplace_back([&, r] {
        const RankGroup ranks(world[r].get(), {.pipeline = 3});
        const TierPlan plan = plan_of(host_bytes[r]);
        planned[r] =
            planned_step({plan, MachineShare(), {5 * kMiB, 7 * kMiB}, 3}, std::nullopt, ranks);
      });
    }
  }
  std::size_t sum = 5 * kMiB;
  for (const std::size_t bytes : host_bytes) {
    const PlanMemory own = memory_of_plan(plan_of(bytes));
    sum += own.host_bytes + own.device_bytes + own.beside_budgets();
  }
  for (const PlannedStep& step : planned) {
    EXPECT_EQ(step.process_bytes, sum);
    EXPECT_EQ(step.host_bytes, 64 * kMiB);
  }
}

}  // namespace
}  // namespace terrace
