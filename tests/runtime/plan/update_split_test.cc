#include "runtime/plan/update_split.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "runtime/plan/auto_placement.h"
#include "runtime/step/simulate.h"
#include "runtime/step/verify.h"
#include "tests/runtime/step/step_fixture.h"

namespace terrace {
namespace {

using ::testing::IsEmpty;

StepPolicy policy_with_state_on(const StepModel& model, Tier optimizer) {
  return uniform_policy(model, {Tier::kDevice, Tier::kDevice, optimizer, Tier::kDevice, false});
}

std::int64_t streamed_elements(const StepModel& model, const StepPolicy& policy) {
  std::int64_t elements = 0;
  for (std::int32_t u = 0; u <= model.last_unit(); ++u) {
    if (policy.streams_update(u)) elements += model.groups.at(u).padded_elements;
  }
  return elements;
}

std::int64_t streamed_units(const StepPolicy& policy) {
  return std::ranges::count(policy.homes, true, &GroupHomes::streams_update);
}

TEST(UpdateSplit, AShareIsKeptWithinHalfAUnitAllAlongTheStep) {
  const StepModel model = small_step_model(20, false);
  for (int percent = 0; percent <= 100; percent += 5) {
    SCOPED_TRACE(percent);
    StepPolicy policy = policy_with_state_on(model, Tier::kHost);
    stream_updates(model, policy, percent / 100.0);
    std::int64_t passed = 0;
    std::int64_t streamed = 0;
    for (std::int32_t u = 0; u <= model.last_unit(); ++u) {
      const std::int64_t elements = model.groups.at(u).padded_elements;
      passed += elements;
      if (policy.streams_update(u)) streamed += elements;
      EXPECT_LE(
          std::abs(static_cast<double>(streamed) - percent / 100.0 * static_cast<double>(passed)),
          10.0 / 2 * kBlockElements);
    }
  }
}

TEST(UpdateSplit, OnlyStateThatIsElsewhereIsStreamed) {
  const StepModel model = small_step_model(6, false);
  StepPolicy policy = policy_with_state_on(model, Tier::kHost);
  for (const std::size_t u : {1U, 3U, 4U}) policy.homes.at(u).optimizer = Tier::kDevice;
  policy.homes.at(5).optimizer = Tier::kNvme;
  stream_updates(model, policy, 1);
  for (const GroupHomes& homes : policy.homes) {
    EXPECT_EQ(homes.streams_update, homes.optimizer != Tier::kDevice);
  }
  stream_updates(model, policy, 0);
  EXPECT_EQ(streamed_units(policy), 0);
}

TEST(UpdateSplit, OnlyUnitsOfThisStageAreStreamed) {
  StepModel model = small_step_model(6, false);
  model.pipeline.stages = 2;
  model.pipeline.stage = 1;
  model.pipeline.piece_begins = {0, 4, 8};
  StepPolicy policy = policy_with_state_on(model, Tier::kHost);
  stream_updates(model, policy, 1);
  for (std::int32_t u = 0; u <= model.last_unit(); ++u) {
    EXPECT_EQ(policy.streams_update(u), u >= 4) << u;
  }
}

// Returns a machine whose compute never makes the other lanes wait.
MachineProfile fast_gpu_machine(std::int32_t update_threads, double link_bytes_per_s = 0) {
  MachineProfile machine = gpu_machine(update_threads, link_bytes_per_s);
  machine.flops_per_s = 1e15;
  machine.op_overhead_s = 0;
  return machine;
}

double balanced(const StepModel& model, const MachineProfile& machine) {
  const StepPolicy policy = policy_with_state_on(model, Tier::kHost);
  StepPolicy all = policy;
  stream_updates(model, all, 1);
  return balanced_share(model, policy, compile_step(model, policy, {}),
                        compile_step(model, all, {}), machine);
}

// The more threads update on the host, the less work is left to the device.
TEST(UpdateSplit, FollowsTheSpeedOfTheHost) {
  const StepModel model = small_step_model(30, false);
  double last = 1;
  for (const std::int32_t threads : {1, 4, 16, 64}) {
    const double share = balanced(model, fast_gpu_machine(threads));
    EXPECT_LE(share, last) << threads;
    last = share;
  }
  EXPECT_GT(balanced(model, fast_gpu_machine(1)), 0.5);
  EXPECT_LT(last, 0.2);
}

// The faster the link, the more is streamed over it. An estimate is used if its speed is unknown.
TEST(UpdateSplit, FollowsTheSpeedOfTheLink) {
  const StepModel model = small_step_model(30, false);
  EXPECT_EQ(balanced(model, fast_gpu_machine(8, 2e9)), 0);
  double last = 0;
  for (const double link : {12e9, 25e9, 55e9, 400e9}) {
    const double share = balanced(model, fast_gpu_machine(8, link));
    EXPECT_GT(share, last) << link;
    last = share;
  }
  EXPECT_EQ(balanced(model, fast_gpu_machine(8)), balanced(model, fast_gpu_machine(8, 25e9)));
}

// With the balanced share, the host's updates and the busiest link end within a unit of each other.
TEST(UpdateSplit, HostAndLinksAreDoneTogether) {
  const StepModel model = small_step_model(30, false);
  MachineProfile machine = fast_gpu_machine(4);
  machine.memory_bytes_per_s = 1e15;
  StepPolicy policy = policy_with_state_on(model, Tier::kHost);
  stream_updates(model, policy, balanced(model, machine));
  ASSERT_GT(streamed_units(policy), 0);
  ASSERT_LT(streamed_units(policy), static_cast<std::int64_t>(model.unit_count()));
  const Program program = compile_step(model, policy, {});
  constexpr int kSteps = 4;
  const SimulationResult result = simulate(program, machine, kSteps);
  const double update_s = result.busy_s_of(Lane::kUpdate) / kSteps;
  const double link_s =
      std::max(result.busy_s_of(Lane::kUpload), result.busy_s_of(Lane::kDownload)) / kSteps;
  double longest_s = 0;  // for one unit, on the host
  for (std::int32_t u = 0; u <= model.last_unit(); ++u) {
    const double bytes = 30.0 * static_cast<double>(model.groups.at(u).padded_elements);
    longest_s = std::max(longest_s, bytes / machine.update_bytes_per_s);
  }
  EXPECT_NEAR(update_s, link_s, 2 * longest_s);
}

PlacementRequest with_state_on_host(std::int32_t update_threads) {
  PlacementRequest request;
  request.unified = false;
  request.homes[StateClass::kParameters] = request.homes[StateClass::kGradients] =
      request.homes[StateClass::kActivations] = Tier::kDevice;
  request.homes[StateClass::kOptimizer] = Tier::kHost;
  request.gpu = GpuSetting{.update_threads = update_threads};
  return request;
}

// Returns a model whose chunks are large enough to be worth the start of an op.
StepModel large_step_model() {
  StepModel model = small_step_model(12, false);
  model.chunk_elements = 256 * kBlockElements;
  for (ParameterGroup& group : model.groups) group.padded_elements *= 256;
  for (UnitModel& unit : model.units) {
    unit.forward_flops *= 256;
    unit.backward_flops *= 256;
    add_whole_steps(unit, false);
  }
  return model;
}

TEST(UpdateSplit, ThePlanStreamsWhatTheHostIsSlowAt) {
  const StepModel model = large_step_model();
  PlacementRequest request = with_state_on_host(1);
  const StepPlan chosen = plan_step(model, request, {});
  EXPECT_THAT(verify(chosen.program), IsEmpty());
  EXPECT_GT(streamed_units(chosen.policy), 0);
  request.streamed_updates = 0;
  const StepPlan none = plan_step(model, request, {});
  EXPECT_EQ(streamed_units(none.policy), 0);
  const MachineProfile machine = fast_gpu_machine(1);
  EXPECT_LT(simulate(chosen.program, machine, 4).step_s, simulate(none.program, machine, 4).step_s);
  EXPECT_EQ(streamed_units(plan_step(model, with_state_on_host(64), {}).policy), 0);
}

TEST(UpdateSplit, TheHostsProcessorsTakeNoUpdatesFromTheHost) {
  PlacementRequest request = with_state_on_host(1);
  request.gpu.reset();
  EXPECT_EQ(streamed_units(plan_step(large_step_model(), request, {}).policy), 0);
}

// Lookahead and deferred updates are chosen for a GPU, whose compute leaves the host's processors
// to updates. The choice for a machine without a GPU is slower there.
TEST(UpdateSplit, TheOrderIsTunedForTheMachineThatComputes) {
  const StepModel model = large_step_model();
  PlacementRequest request = with_state_on_host(16);
  request.homes[StateClass::kParameters] = request.homes[StateClass::kGradients] =
      request.homes[StateClass::kOptimizer] = Tier::kNvme;
  request.has_nvme = true;
  request.updates_wait_for_norm = false;
  request.streamed_updates = 0;
  const Program for_gpu = plan_step(model, request, {}).program;
  MachineProfile machine = gpu_machine(request.gpu->update_threads, 0);
  request.gpu.reset();
  const Program for_host = plan_step(model, request, {}).program;
  double flops = 0;
  for (const Op& op : for_host.ops) flops += op.cost.flops;
  const double disk_bytes = lane_bytes(for_host, Lane::kRead) + lane_bytes(for_host, Lane::kWrite);
  machine.flops_per_s = flops * machine.drive.disk_bytes_per_s / disk_bytes;
  EXPECT_LT(simulate(for_gpu, machine, 4).step_s, 0.95 * simulate(for_host, machine, 4).step_s);
}

TEST(UpdateSplit, ANamedShareIsTaken) {
  const StepModel model = large_step_model();
  PlacementRequest request = with_state_on_host(64);
  request.streamed_updates = 1;
  EXPECT_EQ(streamed_units(plan_step(model, request, {}).policy),
            static_cast<std::int64_t>(model.unit_count()));
  request.streamed_updates = 0.5;
  const StepPolicy half = plan_step(model, request, {}).policy;
  std::int64_t elements = 0;
  for (const ParameterGroup& group : model.groups) elements += group.padded_elements;
  EXPECT_NEAR(static_cast<double>(streamed_elements(model, half)),
              0.5 * static_cast<double>(elements), 0.1 * static_cast<double>(elements));
}

TEST(UpdateSplit, NothingIsStreamedWhereDeviceAndHostAreOne) {
  PlacementRequest request;
  request.unified = true;
  EXPECT_EQ(streamed_units(plan_step(large_step_model(), request, {}).policy), 0);
  request.streamed_updates = 1;
  EXPECT_EQ(streamed_units(plan_step(large_step_model(), request, {}).policy), 0);
}

// If the optimizer state fills a device, another unit's state leaves it where that makes the step
// shorter. The budgets are kept.
TEST(UpdateSplit, MakesRoomForWhatPassesThrough) {
  const StepModel model = large_step_model();
  PlacementRequest request = with_state_on_host(1);
  request.homes[StateClass::kOptimizer].reset();
  const std::size_t all = plan_step(model, request, {}).program.use_of(Tier::kDevice).packed_bytes;
  int made = 0;
  for (int percent = 50; percent < 100; percent += 5) {
    TierBudgets budgets;
    budgets.front() = all / 100 * static_cast<std::size_t>(percent);
    request.streamed_updates.reset();
    const StepPlan chosen = plan_step(model, request, budgets);
    EXPECT_TRUE(fits(chosen.ledger));
    EXPECT_THAT(verify(chosen.program), IsEmpty());
    request.streamed_updates = 0;
    const auto on_host = [](const StepPlan& plan) {
      return std::ranges::count(plan.policy.homes, Tier::kHost, &GroupHomes::optimizer);
    };
    const auto more = on_host(chosen) - on_host(plan_step(model, request, budgets));
    EXPECT_GE(more, 0);
    EXPECT_LE(more, 2);
    EXPECT_TRUE(more == 0 || streamed_units(chosen.policy) > 0);
    if (streamed_units(chosen.policy) > 0) ++made;
  }
  EXPECT_GT(made, 0);
}

// Every data-parallel rank streams the same units.
TEST(UpdateSplit, RanksChooseTheSame) {
  const PlacementRequest request = with_state_on_host(1);
  std::vector<StepPolicy> policies;
  for (const std::int32_t rank : {0, 1, 2}) {
    policies.push_back(plan_step(divided(large_step_model(), {1, 3, rank}), request, {}).policy);
  }
  EXPECT_GT(streamed_units(policies[0]), 0);
  EXPECT_EQ(policies[1].homes, policies[0].homes);
  EXPECT_EQ(policies[2].homes, policies[0].homes);
}

}  // namespace
}  // namespace terrace
