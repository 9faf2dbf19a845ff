#include "runtime/plan/auto_placement.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "base/bytes.h"
#include "base/error.h"
#include "runtime/step/simulate.h"
#include "runtime/step/verify.h"
#include "runtime/step/verify_ranks.h"
#include "runtime/train/option_flags.h"
#include "tests/runtime/step/step_fixture.h"
#include "tests/sanitized.h"

namespace terrace {
namespace {

using ::testing::AnyOf;
using ::testing::Each;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

std::optional<std::size_t>& budget(TierBudgets& budgets, Tier tier) {
  return budgets.at(static_cast<std::size_t>(tier));
}

std::size_t peak(const StepPlan& plan, Tier tier) { return plan.program.use_of(tier).packed_bytes; }

std::size_t units_with(const StepPolicy& policy, StateClass state, Tier tier) {
  std::size_t count = 0;
  for (std::int32_t u = 0; u < std::ssize(policy.homes); ++u) {
    count += policy.home(state, u) == tier ? 1 : 0;
  }
  return count;
}

std::size_t units_recomputed(const StepPolicy& policy) {
  return static_cast<std::size_t>(
      std::ranges::count(policy.activations, true, &UnitActivations::recompute));
}

// Returns a request that leaves out where updates run, which update_split_test.cc tests.
PlacementRequest on_an_accelerator() {
  PlacementRequest request;
  request.unified = false;
  request.has_nvme = true;
  request.streamed_updates = 0;
  return request;
}

TEST(AutoPlacement, WithRoomEverythingIsInTheComputeTier) {
  const StepModel model = small_step_model(4, true);
  for (const bool unified : {false, true}) {
    PlacementRequest request = on_an_accelerator();
    request.unified = unified;
    const StepPlan plan = plan_step(model, request, {});
    const Tier fastest = unified ? Tier::kHost : Tier::kDevice;
    for (const StateClassInfo& info : kStateClasses) {
      EXPECT_EQ(units_with(plan.policy, info.state, fastest), model.unit_count()) << info.name;
    }
    EXPECT_EQ(units_recomputed(plan.policy), 0U);
    EXPECT_EQ(plan.program, compile_step(model, plan.policy, {}));
    EXPECT_EQ(peak(plan, Tier::kNvme), 0U);
  }
}

TEST(AutoPlacement, ABudgetThatIsJustEnoughChangesNothing) {
  const StepModel model = small_step_model(4, false);
  const PlacementRequest request = on_an_accelerator();
  const StepPlan loose = plan_step(model, request, {});
  TierBudgets budgets;
  budget(budgets, Tier::kDevice) = peak(loose, Tier::kDevice);
  EXPECT_EQ(plan_step(model, request, budgets).policy.homes, loose.policy.homes);
}

// The device's budget shrinks step by step. The optimizer state leaves first, unit by unit; then
// saved activations are recomputed; then gradients leave, then parameters, and then activations.
TEST(AutoPlacement, TheDeviceGivesWayInTheStatedOrder) {
  const StepModel model = small_step_model(4, false);
  const PlacementRequest request = on_an_accelerator();
  const std::size_t units = model.unit_count();
  const std::size_t blocks = units - 2;
  const std::size_t all = peak(plan_step(model, request, {}), Tier::kDevice);
  std::size_t last_given = 0;
  bool partly = false;
  for (std::size_t bytes = all; bytes > 0; bytes -= std::min(bytes, all / 48)) {
    SCOPED_TRACE(bytes);
    TierBudgets budgets;
    budget(budgets, Tier::kDevice) = bytes;
    StepPlan plan;
    try {
      plan = plan_step(model, request, budgets);
    } catch (const OutOfMemory&) {
      break;
    }
    const StepPolicy& policy = plan.policy;
    const std::size_t optimizer = units_with(policy, StateClass::kOptimizer, Tier::kHost);
    const std::size_t recomputed = units_recomputed(policy);
    const std::size_t gradients = units_with(policy, StateClass::kGradients, Tier::kHost);
    const std::size_t parameters = units_with(policy, StateClass::kParameters, Tier::kHost);
    const std::size_t activations = units_with(policy, StateClass::kActivations, Tier::kHost);
    EXPECT_TRUE(recomputed == 0 || optimizer == units) << optimizer;
    EXPECT_TRUE(gradients == 0 || recomputed == blocks) << recomputed;
    EXPECT_TRUE(parameters == 0 || gradients == units) << gradients;
    EXPECT_TRUE(activations == 0 || parameters == units) << parameters;
    const std::size_t given = optimizer + recomputed + gradients + parameters + activations;
    EXPECT_GE(given, last_given) << "less room, and more stays";
    EXPECT_EQ(peak(plan, Tier::kNvme), 0U) << "the host has room";
    partly = partly || (optimizer > 0 && optimizer < units);
    last_given = given;
  }
  EXPECT_TRUE(partly) << "units leave one by one";
  EXPECT_GT(last_given, 2 * units) << "the optimizer state alone is not all that can leave";
}

// With one concession fewer the step would not fit.
TEST(AutoPlacement, GivesWayNoFurtherThanNeeded) {
  const StepModel model = small_step_model(6, false);
  const PlacementRequest request = on_an_accelerator();
  const std::size_t all = peak(plan_step(model, request, {}), Tier::kDevice);
  TierBudgets budgets;
  budget(budgets, Tier::kDevice) = all * 3 / 4;
  const StepPlan plan = plan_step(model, request, budgets);
  const std::size_t left = units_with(plan.policy, StateClass::kOptimizer, Tier::kHost);
  ASSERT_GT(left, 0U);
  ASSERT_LT(left, model.unit_count());
  EXPECT_EQ(plan.policy.homes[left - 1].optimizer, Tier::kHost) << "in the order of the units";
  StepPolicy more = plan.policy;
  more.homes[left - 1].optimizer = Tier::kDevice;
  EXPECT_THAT(tiers_over_budget(compile_step(model, more, budgets), budgets),
              ::testing::ElementsAre(Tier::kDevice));
}

TEST(AutoPlacement, AHostThatIsTooSmallSpillsToNvme) {
  const StepModel model = small_step_model(6, false);
  PlacementRequest request;
  request.has_nvme = true;
  const std::size_t all = peak(plan_step(model, request, {}), Tier::kHost);
  TierBudgets budgets;
  budget(budgets, Tier::kHost) = all / 2;
  const StepPlan plan = plan_step(model, request, budgets);
  EXPECT_GT(units_with(plan.policy, StateClass::kOptimizer, Tier::kNvme), 0U);
  EXPECT_GT(peak(plan, Tier::kNvme), 0U);
  EXPECT_LE(peak(plan, Tier::kHost), all / 2);
  EXPECT_EQ(units_with(plan.policy, StateClass::kOptimizer, Tier::kDevice), 0U);
}

TEST(AutoPlacement, NamedTiersAreHonoured) {
  std::mt19937 random(3);
  const StepModel model = small_step_model(3, true);
  for (int round = 0; round < 30; ++round) {
    SCOPED_TRACE(round);
    PlacementRequest request = on_an_accelerator();
    const auto maybe = [&random](std::optional<Tier>& tier) {
      if (random() % 2 == 0) tier = kTiers.at(random() % kTierCount);
    };
    for (std::optional<Tier>& home : request.homes.values) maybe(home);
    if (random() % 2 == 0) request.recompute = random() % 2 == 0;
    request.micro_batches = 1 + static_cast<std::int32_t>(random() % 2);
    if (random() % 2 == 0) request.order = MicroBatchOrder::kLayerMajor;
    request.lookahead = static_cast<std::int32_t>(random() % 4);
    TierBudgets budgets;
    budget(budgets, Tier::kDevice) = std::size_t{2} * kMiB + random() % (4 * kMiB);
    StepPlan plan;
    try {
      plan = plan_step(model, request, budgets);
    } catch (const OutOfMemory&) {
      continue;
    }
    for (std::int32_t u = 0; u <= model.last_unit(); ++u) {
      for (const StateClassInfo& info : kStateClasses) {
        const Tier home = plan.policy.home(info.state, u);
        EXPECT_EQ(home, request.homes[info.state].value_or(home));
      }
      const bool recompute = plan.policy.activations.at(static_cast<std::size_t>(u)).recompute;
      EXPECT_EQ(recompute, request.recompute.value_or(recompute));
    }
    EXPECT_EQ(plan.policy.order, request.order.value_or(plan.policy.order));
    EXPECT_EQ(plan.policy.lookahead, request.lookahead);
    EXPECT_EQ(plan.policy.micro_batches, request.micro_batches);
  }
}

// If nothing may be on NVMe, nothing is put there.
TEST(AutoPlacement, WithoutNvmeNothingIsPutThere) {
  const StepModel model = small_step_model(4, false);
  PlacementRequest request = on_an_accelerator();
  request.has_nvme = false;
  TierBudgets budgets;
  budget(budgets, Tier::kDevice) = peak(plan_step(model, request, {}), Tier::kDevice) / 2;
  EXPECT_EQ(peak(plan_step(model, request, budgets), Tier::kNvme), 0U);
}

// The device has room for everything, but its activations wait on a host that is too small.
TEST(AutoPlacement, RecomputesWhereActivationsDoNotFitTheHost) {
  const StepModel model = small_step_model(4, false);
  PlacementRequest request = on_an_accelerator();
  request.homes[StateClass::kActivations] = Tier::kHost;
  request.has_nvme = false;
  request.recompute = true;
  const std::size_t least = peak(plan_step(model, request, {}), Tier::kHost);
  request.recompute = std::nullopt;
  TierBudgets budgets;
  EXPECT_GT(peak(plan_step(model, request, budgets), Tier::kHost), least);
  budget(budgets, Tier::kHost) = least;
  const StepPlan plan = plan_step(model, request, budgets);
  EXPECT_EQ(peak(plan, Tier::kHost), least);
  EXPECT_EQ(units_recomputed(plan.policy), 4U);
}

TEST(AutoPlacement, RandomBudgetsAreKeptOrRefused) {
  int fitted = 0;
  int refused = 0;
  for (unsigned seed = 0; seed < 60; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937 random(seed);
    const StepModel model =
        small_step_model(1 + static_cast<std::int64_t>(random() % 5), random() % 2 == 0);
    PlacementRequest request = on_an_accelerator();
    request.unified = random() % 2 == 0;
    request.has_nvme = random() % 4 != 0;
    request.micro_batches = 1 + static_cast<std::int32_t>(random() % 3);
    request.lookahead = static_cast<std::int32_t>(random() % 4);
    const StepPlan loose = plan_step(model, request, {});
    TierBudgets budgets;
    for (const Tier tier : {Tier::kDevice, Tier::kHost}) {
      const std::size_t most = std::max(peak(loose, tier), peak(loose, Tier::kDevice));
      if (random() % 4 != 0) budget(budgets, tier) = most * (random() % 100) / 80;
    }
    if (random() % 4 == 0) budget(budgets, Tier::kNvme) = random() % (8 * kMiB);
    try {
      const StepPlan plan = plan_step(model, request, budgets);
      ++fitted;
      EXPECT_TRUE(fits(plan.ledger));
      EXPECT_THAT(tiers_over_budget(plan.program, budgets), IsEmpty());
      EXPECT_THAT(verify(plan.program), IsEmpty());
      EXPECT_EQ(plan.program, compile_step(model, plan.policy, budgets));
    } catch (const OutOfMemory& error) {
      ++refused;
      EXPECT_THAT(error.what(), AnyOf(HasSubstr("device"), HasSubstr("host"), HasSubstr("nvme")));
      EXPECT_THAT(error.remedy(), HasSubstr("raise ")) << error.what();
    }
  }
  EXPECT_GT(fitted, 15);
  EXPECT_GT(refused, 8);
}

// Returns the number of bytes after `before` in a remedy.
std::size_t named_in(const std::string& remedy, const std::string& before) {
  const std::size_t begin = remedy.find(before) + before.size();
  const std::size_t end = remedy.find(" or more", begin);
  EXPECT_NE(end, std::string::npos) << remedy;
  return parse_size(remedy.substr(begin, end - begin));
}

std::string remedy_of(const StepModel& model, const PlacementRequest& request,
                      const TierBudgets& budgets) {
  try {
    plan_step(model, request, budgets);
  } catch (const OutOfMemory& error) {
    return error.remedy();
  }
  ADD_FAILURE() << "the step fits";
  return {};
}

TEST(AutoPlacement, ARefusalNamesTierNeedAndRemedies) {
  const StepModel model = small_step_model(3, false);
  PlacementRequest request = on_an_accelerator();
  request.has_nvme = false;
  request.recompute = false;
  TierBudgets budgets;
  budget(budgets, Tier::kDevice) = 64 * kKiB;
  budget(budgets, Tier::kHost) = 64 * kKiB;
  try {
    plan_step(model, request, budgets);
    FAIL() << "64 KiB are not enough";
  } catch (const OutOfMemory& error) {
    EXPECT_THAT(error.what(), HasSubstr("the step does not fit"));
    EXPECT_THAT(error.what(), HasSubstr("device"));
    EXPECT_THAT(error.what(), HasSubstr("host"));
    EXPECT_THAT(error.what(), HasSubstr("64.0 KiB"));
    EXPECT_THAT(error.remedy(), HasSubstr("raise budgets.device to "));
    EXPECT_THAT(error.remedy(), HasSubstr("raise budgets.host to "));
    EXPECT_THAT(error.remedy(), HasSubstr("give nvme.directories"));
    EXPECT_THAT(error.remedy(), HasSubstr("allow placement.recompute"));
    EXPECT_THAT(error.remedy(), Not(HasSubstr("batch.sequences")));
  }
}

TEST(AutoPlacement, ARefusalNamesOptionsAsItsCallerKnowsThem) {
  const StepModel model = small_step_model(3, false);
  PlacementRequest request = on_an_accelerator();
  TierBudgets budgets;
  budget(budgets, Tier::kDevice) = 64 * kKiB;
  EXPECT_THAT(remedy_of(model, request, budgets), Not(HasSubstr("--")));
  request.name_of_option = flag_of_option;
  EXPECT_THAT(remedy_of(model, request, budgets), HasSubstr("raise --device-memory to "));
}

// Returns a reduction of `value` threads, each of which has `bytes_each` of the workspace.
Reduction workspace_for_each(const StepModel& model, std::int64_t value, std::size_t bytes_each) {
  return {.option = Option::kThreads,
          .value = value,
          .model_with = [&model, bytes_each](std::int64_t lower) {
            StepModel other = model;
            other.workspace_bytes = static_cast<std::size_t>(lower) * bytes_each;
            return other;
          }};
}

// The lowered value that is named fits, and the next larger value does not. An option that would
// not help is not named.
TEST(AutoPlacement, ARefusalNamesTheLargestLowerValueThatFits) {
  StepModel model = small_step_model(3, false);
  model.workspace_bytes = 4 * kMiB;
  PlacementRequest request = on_an_accelerator();
  TierBudgets budgets;
  const std::size_t fixed = [&] {
    StepModel bare = model;
    bare.workspace_bytes = 0;
    budget(budgets, Tier::kDevice) = 64 * kKiB;
    const std::string remedy = remedy_of(bare, request, budgets);
    return named_in(remedy, "budgets.device to ");
  }();
  budget(budgets, Tier::kDevice) = fixed + kMiB;
  request.reductions = {
      workspace_for_each(model, 64, 64 * kKiB),
      {Option::kMicroBatchSize, 1, 1, 1, nullptr},
      {Option::kSequenceLength, 128, 1, 16, [&model](std::int64_t) { return model; }}};
  const std::string remedy = remedy_of(model, request, budgets);
  const std::string before = "lower threads to ";
  ASSERT_THAT(remedy, HasSubstr(before));
  EXPECT_THAT(remedy, Not(HasSubstr("batch.sequences")));
  EXPECT_THAT(remedy, Not(HasSubstr("batch.positions")));
  EXPECT_THAT(remedy, Not(HasSubstr("not enough")));
  const std::int64_t named = std::stoll(remedy.substr(remedy.find(before) + before.size()));
  EXPECT_GE(named, 16);
  EXPECT_NO_THROW(plan_step(request.reductions[0].model_with(named), request, budgets));
  EXPECT_THROW(plan_step(request.reductions[0].model_with(named + 1), request, budgets),
               OutOfMemory);
}

TEST(AutoPlacement, ARefusalSaysWhatHelpsButIsNotEnough) {
  StepModel model = small_step_model(3, false);
  model.workspace_bytes = 4 * kMiB;
  PlacementRequest request = on_an_accelerator();
  TierBudgets budgets;
  budget(budgets, Tier::kDevice) = 64 * kKiB;
  request.reductions = {workspace_for_each(model, 64, 64 * kKiB)};
  EXPECT_THAT(
      remedy_of(model, request, budgets),
      HasSubstr(
          "\nthese help, but are not enough on their own:\n  lower threads (up to 3.94 MiB less)"));
}

// The budgets that are named suffice for all stages of a pipeline, whichever stage refuses first.
TEST(AutoPlacement, ARefusalNamesWhatTheLargestStageOfAPipelineNeeds) {
  StepModel model = small_step_model(6, false);
  model.pipeline.stages = 2;
  model.pipeline.piece_begins = {0, 2, 8};
  PlacementRequest request = on_an_accelerator();
  request.micro_batches = 2;
  TierBudgets budgets;
  budget(budgets, Tier::kDevice) = 64 * kKiB;
  std::vector<std::string> remedies;
  for (const std::int32_t stage : {0, 1}) {
    model.pipeline.stage = stage;
    remedies.push_back(remedy_of(model, request, budgets));
  }
  EXPECT_EQ(remedies[0], remedies[1]);
  budget(budgets, Tier::kDevice) = named_in(remedies[0], "budgets.device to ");
  for (const std::int32_t stage : {0, 1}) {
    model.pipeline.stage = stage;
    EXPECT_NO_THROW(plan_step(model, request, budgets));
  }
}

// If one unit's parameters and gradient are most of the need, the refusal names the unit and the
// option that divides it.
TEST(AutoPlacement, ARefusalNamesAUnitThatIsTooLarge) {
  StepModel model = small_step_model(2, false);
  model.groups.back().padded_elements *= 64;
  PlacementRequest request = on_an_accelerator();
  StepModel divided = model;
  divided.groups.back().padded_elements /= 8;
  request.tensor_divisions = {{2, [&] { return model; }}, {4, [&] { return divided; }}};
  TierBudgets budgets;
  budget(budgets, Tier::kDevice) = peak(plan_step(divided, request, {}), Tier::kDevice);
  try {
    plan_step(model, request, budgets);
    FAIL();
  } catch (const OutOfMemory& error) {
    EXPECT_THAT(error.what(), HasSubstr("the head alone has parameters and a gradient of "));
    EXPECT_THAT(error.remedy(), HasSubstr("ranks.shape.tensor 4"));
  }
}

// Concessions to memory that is not short must not ask for more of the drive.
TEST(AutoPlacement, ARefusalForTheDriveAloneNamesWhatIsEnough) {
  const StepModel model = small_step_model(3, false);
  PlacementRequest request = on_an_accelerator();
  request.homes[StateClass::kOptimizer] = Tier::kNvme;
  const std::size_t needed = peak(plan_step(model, request, {}), Tier::kNvme);
  TierBudgets budgets;
  budget(budgets, Tier::kNvme) = needed - kMiB;
  try {
    plan_step(model, request, budgets);
    FAIL() << "the drive is too small";
  } catch (const OutOfMemory& error) {
    EXPECT_THAT(error.what(), HasSubstr("nvme needs " + format_size(needed) + " "));
    EXPECT_THAT(error.remedy(), HasSubstr("raise budgets.nvme to "));
  }
}

// The quick answer that guides the search for homes never refuses a policy that the full compile
// makes fit.
TEST(AutoPlacement, WhatFitsCanFit) {
  int fitted = 0;
  int refused = 0;
  for (unsigned seed = 0; seed < 60; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937 random(seed);
    const StepModel model = small_step_model(4, random() % 2 == 0);
    const auto some_tier = [&random] { return kTiers.at(random() % kTierCount); };
    StepPolicy policy = uniform_policy(
        model, {some_tier(), some_tier(), some_tier(), some_tier(), random() % 2 == 0});
    policy.micro_batches = 1 + static_cast<std::int32_t>(random() % 3);
    policy.updates_wait_for_norm = random() % 2 == 0;
    const Program loose = compile_step(model, policy, {});
    TierBudgets budgets;
    for (const Tier tier : {Tier::kDevice, Tier::kHost}) {
      budget(budgets, tier) = loose.use_of(tier).packed_bytes * (40 + random() % 60) / 80;
    }
    const bool fits = tiers_over_budget(compile_step(model, policy, budgets), budgets).empty();
    const LeastStep least(model, policy);
    const auto can_fit = [&](Tier tier) {
      const std::size_t bytes = *budget(budgets, tier);
      return least.packed_bytes(tier, bytes) <= bytes ||
             fits_with_prefetch(model, policy, budgets, tier);
    };
    const bool can = can_fit(Tier::kDevice) && can_fit(Tier::kHost);
    EXPECT_TRUE(can || !fits);
    fitted += fits ? 1 : 0;
    refused += can ? 0 : 1;
  }
  EXPECT_GT(fitted, 10);
  EXPECT_GT(refused, 10);
}

// The budget that the remedy asks for is enough, although it is given in three digits.
TEST(AutoPlacement, TheNeedThatIsNamedFits) {
  for (std::int64_t blocks = 1; blocks <= 8; ++blocks) {
    StepModel model = small_step_model(blocks, false);
    model.workspace_bytes = 3 * kMiB + static_cast<std::size_t>(blocks) * 4096;
    const PlacementRequest request = on_an_accelerator();
    TierBudgets budgets;
    budget(budgets, Tier::kDevice) = 64 * kKiB;
    budget(budgets, Tier::kHost) = 64 * kKiB;
    std::string remedy;
    try {
      plan_step(model, request, budgets);
      FAIL() << "64 KiB are not enough";
    } catch (const OutOfMemory& error) {
      remedy = error.remedy();
    }
    budget(budgets, Tier::kDevice) = named_in(remedy, "budgets.device to ");
    budget(budgets, Tier::kHost) = named_in(remedy, "budgets.host to ");
    EXPECT_NO_THROW(plan_step(model, request, budgets)) << remedy;
  }
}

// A device with room keeps its state. The host is asked only for the bytes that wait there.
TEST(AutoPlacement, TheNeedOfTheHostLeavesOutWhatTheDeviceHolds) {
  const StepModel model = small_step_model(4, false);
  PlacementRequest request = on_an_accelerator();
  request.homes[StateClass::kActivations] = Tier::kHost;
  request.has_nvme = false;
  request.recompute = true;
  const std::size_t enough = peak(plan_step(model, request, {}), Tier::kHost);
  request.recompute = std::nullopt;
  TierBudgets budgets;
  budget(budgets, Tier::kHost) = 4 * kKiB;
  try {
    plan_step(model, request, budgets);
    FAIL() << "4 KiB are not enough";
  } catch (const OutOfMemory& error) {
    const std::size_t named = named_in(error.remedy(), "budgets.host to ");
    EXPECT_LT(named, enough + enough / 50) << error.remedy();
    budget(budgets, Tier::kHost) = named;
  }
  EXPECT_NO_THROW(plan_step(model, request, budgets));
}

// If two orders fit, the one that moves less is taken.
TEST(AutoPlacement, ChoosesTheOrderThatMovesLess) {
  const StepModel model = small_step_model(8, false);
  PlacementRequest request = on_an_accelerator();
  request.micro_batches = 4;
  request.homes[StateClass::kParameters] = Tier::kHost;
  request.lookahead = 1;
  TierBudgets budgets;
  request.order = MicroBatchOrder::kLayerMajor;
  budget(budgets, Tier::kDevice) = peak(plan_step(model, request, {}), Tier::kDevice) / 2;
  const auto moved = [](const StepPlan& plan) {
    double bytes = 0;
    for (const Lane lane : {Lane::kUpload, Lane::kDownload, Lane::kRead, Lane::kWrite}) {
      bytes += lane_bytes(plan.program, lane);
    }
    return bytes;
  };
  const double layer_major = moved(plan_step(model, request, budgets));
  request.order = MicroBatchOrder::kMicroBatchMajor;
  const double micro_batch_major = moved(plan_step(model, request, budgets));
  request.order = std::nullopt;
  EXPECT_NE(layer_major, micro_batch_major);
  EXPECT_EQ(moved(plan_step(model, request, budgets)), std::min(layer_major, micro_batch_major));
}

// If the updates of a step need not wait, the drive's work is divided between forward and backward.
TEST(AutoPlacement, TheSimulatorSaysHowManyUpdatesAreDeferred) {
  const StepModel model = small_step_model(24, false);
  PlacementRequest request;
  request.unified = request.has_nvme = true;
  request.homes[StateClass::kParameters] = request.homes[StateClass::kGradients] =
      request.homes[StateClass::kOptimizer] = Tier::kNvme;
  request.homes[StateClass::kActivations] = Tier::kHost;
  const auto deferred = [](const StepPolicy& policy) {
    return std::ranges::count(policy.homes, true, &GroupHomes::defers_update);
  };
  EXPECT_EQ(deferred(plan_step(model, request, {}).policy), kUsualDeferredUnits)
      << "all wait for the norm";
  request.updates_wait_for_norm = false;
  const StepPlan plan = plan_step(model, request, {});
  EXPECT_GT(deferred(plan.policy), kUsualDeferredUnits);
  StepPolicy untuned = plan.policy;
  defer_first_updates(untuned, model.groups, kUsualDeferredUnits);
  // Compute takes as long as the drive.
  MachineProfile profile;
  double flops = 0;
  for (const Op& op : plan.program.ops) flops += op.cost.flops;
  profile.flops_per_s =
      flops * profile.drive.disk_bytes_per_s /
      (lane_bytes(plan.program, Lane::kRead) + lane_bytes(plan.program, Lane::kWrite));
  EXPECT_LT(simulate(plan.program, profile, 4).step_s,
            simulate(compile_step(model, untuned, {}), profile, 4).step_s);
}

// The simulator's answer depends on where a rank's shards lie; the programs that ranks run must
// not.
TEST(AutoPlacement, DataParallelRanksChooseOneProgram) {
  for (unsigned seed = 0; seed < (kSanitized ? 8 : 40); ++seed) {
    std::mt19937 random(seed);
    const StepModel whole =
        small_step_model(2 + static_cast<std::int64_t>(random() % 8), random() % 2 == 0);
    PlacementRequest request = on_an_accelerator();
    request.unified = random() % 2 == 0;
    request.has_nvme = true;
    request.homes[StateClass::kParameters] = request.homes[StateClass::kGradients] =
        request.homes[StateClass::kOptimizer] = Tier::kNvme;
    request.micro_batches = 1 + static_cast<std::int32_t>(random() % 4);
    request.updates_wait_for_norm = random() % 2 == 0;
    const auto zero_stage = 1 + static_cast<std::int32_t>(random() % 3);
    std::vector<Program> programs;
    for (const std::int32_t rank : {0, 1}) {
      programs.push_back(plan_step(divided(whole, {zero_stage, 2, rank}), request, {}).program);
    }
    EXPECT_THAT(verify_ranks(programs), IsEmpty()) << seed;
  }
}

TEST(AutoPlacement, TheLedgerIsThatOfTheProgram) {
  const StepModel model = small_step_model(3, false);
  TierBudgets budgets;
  budget(budgets, Tier::kDevice) = 64 * kMiB;
  const StepPlan plan = plan_step(model, on_an_accelerator(), budgets);
  for (const Tier tier : kTiers) {
    EXPECT_EQ(plan.ledger[tier].peak_bytes, plan.program.use_of(tier).packed_bytes);
    EXPECT_EQ(plan.ledger[tier].live_peak_bytes, plan.program.use_of(tier).live_bytes);
    EXPECT_EQ(plan.ledger[tier].charged_bytes, plan.program.use_of(tier).accounts);
    EXPECT_EQ(plan.ledger[tier].budget_bytes, budget(budgets, tier));
  }
}

}  // namespace
}  // namespace terrace
