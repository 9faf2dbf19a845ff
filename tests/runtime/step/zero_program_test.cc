#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>

#include "runtime/step/verify.h"
#include "runtime/step/verify_ranks.h"
#include "tests/runtime/step/step_fixture.h"
#include "tests/sanitized.h"

// The changes that ZeRO makes to a program, as data.
namespace terrace {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;

std::vector<Program> programs_of_ranks(const StepModel& model, ZeroSharding zero,
                                       const StepPolicy& policy,
                                       const TierBudgets& budgets = TierBudgets()) {
  std::vector<Program> programs;
  for (zero.rank = 0; zero.rank < zero.ranks; ++zero.rank) {
    programs.push_back(compile_step(divided(model, zero), policy, budgets));
  }
  return programs;
}

TEST(ZeroProgram, RandomPoliciesVerifyOnAllRanks) {
  std::mt19937 random(7);
  for (int round = 0; round < (kSanitized ? 30 : 150); ++round) {
    StepModel model =
        small_step_model(1 + static_cast<std::int64_t>(random() % 4), random() % 2 == 0);
    StepPolicy policy;
    policy.micro_batches = 1 + static_cast<std::int32_t>(random() % 3);
    policy.order =
        random() % 2 == 0 ? MicroBatchOrder::kLayerMajor : MicroBatchOrder::kMicroBatchMajor;
    if (random() % 3 == 0) {
      model.gradient_type = DType::kBF16;
    } else if (policy.order == MicroBatchOrder::kMicroBatchMajor) {
      policy.reduces_micro_batches = random() % 3 == 0;
    }
    policy.unified = random() % 2 == 0;
    policy.updates_wait_for_norm = random() % 2 == 0;
    policy.lookahead = static_cast<std::int32_t>(random() % 4);
    const auto tier = [&] { return kTiers.at(random() % kTierCount); };
    for (std::size_t u = 0; u < model.unit_count(); ++u) {
      add_homes(policy, {tier(), tier(), tier(), tier(), random() % 2 == 0});
      policy.homes.back().streams_update = random() % 3 == 0;
    }
    ZeroSharding zero = {.stage = static_cast<std::int32_t>(random() % 4),
                         .ranks = 2 + static_cast<std::int32_t>(random() % 4)};
    if (random() % 3 == 0) {
      zero = {.stage = 3,
              .ranks = random() % 2 == 0 ? 4 : 6,
              .islands = 2,
              .partition = random() % 2 == 0 || policy.reduces_micro_batches
                               ? ZeroPartition::kHpz
                               : ZeroPartition::kHsdp};
    }
    SCOPED_TRACE(testing::Message() << "round " << round << ", stage " << zero.stage << ", "
                                    << name_of(zero.partition));
    TierBudgets budgets;
    if (random() % 2 == 0) budgets.fill(16 * kMiB);
    const std::vector<Program> programs = programs_of_ranks(model, zero, policy, budgets);
    for (const Program& program : programs) ASSERT_THAT(verify(program), IsEmpty());
    ASSERT_THAT(verify_ranks(programs), IsEmpty());
    ASSERT_EQ(rank_fingerprint(programs.front()), rank_fingerprint(programs.back()));
  }
}

// At stages 0 to 2 homes, prefetching, recomputation and budgets may differ by rank.
TEST(ZeroProgram, HasTheSameCollectivesWhateverTheHomes) {
  std::mt19937 random(17);
  int unlike = 0;
  const int rounds = kSanitized ? 30 : 150;
  for (int round = 0; round < rounds; ++round) {
    StepModel model =
        small_step_model(1 + static_cast<std::int64_t>(random() % 4), random() % 2 == 0);
    if (random() % 3 == 0) model.gradient_type = DType::kBF16;
    StepPolicy shared;
    shared.micro_batches = 1 + static_cast<std::int32_t>(random() % 3);
    shared.order =
        random() % 2 == 0 ? MicroBatchOrder::kLayerMajor : MicroBatchOrder::kMicroBatchMajor;
    shared.unified = random() % 2 == 0;
    shared.updates_wait_for_norm = random() % 2 == 0;
    const auto stage = static_cast<std::int32_t>(random() % 3);
    std::vector<Program> programs;
    for (std::int32_t rank = 0; rank < 3; ++rank) {
      StepPolicy policy = shared;
      policy.lookahead = static_cast<std::int32_t>(random() % 4);
      const auto tier = [&] { return kTiers.at(random() % kTierCount); };
      for (std::size_t u = 0; u < model.unit_count(); ++u) {
        add_homes(policy, {tier(), tier(), tier(), tier(), random() % 2 == 0});
        policy.homes.back().streams_update = random() % 3 == 0;
      }
      TierBudgets budgets;
      if (random() % 2 == 0) budgets.fill((1 + random() % 16) * kMiB);
      programs.push_back(compile_step(divided(model, {stage, 3, rank}), policy, budgets));
      ASSERT_THAT(verify(programs.back()), IsEmpty());
    }
    SCOPED_TRACE(testing::Message() << "round " << round << ", stage " << stage);
    ASSERT_THAT(verify_ranks(programs, RankMatch::kCollectives), IsEmpty());
    ASSERT_EQ(rank_fingerprint(programs.front(), RankMatch::kCollectives),
              rank_fingerprint(programs.back(), RankMatch::kCollectives));
    unlike += verify_ranks(programs, RankMatch::kAllOps).empty() ? 0 : 1;
  }
  EXPECT_GT(unlike, rounds / 2);
}

// Without clipping an update gathers parameters under the backward or under the next forward. Ranks
// that choose differently would gather in another order.
TEST(ZeroProgram, OtherDeferredUpdatesAreFoundAmongTheCollectives) {
  const StepModel model = divided(small_step_model(4, false), {1, 2, 0});
  StepPolicy policy = uniform_policy(model, {});
  policy.updates_wait_for_norm = false;
  const auto programs_with = [&](std::int32_t units) {
    StepPolicy other = policy;
    defer_first_updates(other, model.groups, units);
    EXPECT_EQ(deferred_units_of(other, model.groups), units);
    return std::vector<Program>{compile_step(model, policy, {}), compile_step(model, other, {})};
  };
  EXPECT_THAT(verify_ranks(programs_with(kUsualDeferredUnits), RankMatch::kCollectives), IsEmpty());
  const std::vector<Program> programs = programs_with(5);
  const std::vector<std::string> problems = verify_ranks(programs, RankMatch::kCollectives);
  ASSERT_THAT(problems, testing::Not(IsEmpty()));
  EXPECT_THAT(problems.front(),
              testing::AllOf(HasSubstr("on rank 0: "), HasSubstr("on rank 1: all_gather")));
  EXPECT_NE(rank_fingerprint(programs[0], RankMatch::kCollectives),
            rank_fingerprint(programs[1], RankMatch::kCollectives));
  EXPECT_EQ(first_difference(shared_ops(programs[0], RankMatch::kCollectives),
                             shared_ops(programs[1], RankMatch::kCollectives), 1),
            problems.front());
}

// At stage 3 the parameters that stay from forward to backward are gathered once, so ranks with
// other budgets gather more or less often.
TEST(ZeroProgram, OtherBudgetsAtStageThreeAreFoundAmongTheCollectives) {
  const StepModel model = divided(small_step_model(4, false), {3, 2, 0});
  StepPolicy policy = uniform_policy(model, {});
  policy.unified = true;
  TierBudgets none;
  none.fill(std::size_t{0});  // nothing stays without need
  const std::vector<Program> programs = {compile_step(model, policy, {}),
                                         compile_step(model, policy, none)};
  EXPECT_THAT(verify_ranks(programs, RankMatch::kCollectives), testing::Not(IsEmpty()));
}

TEST(ZeroProgram, RanksThatDisagreeAreFound) {
  const StepModel model = small_step_model(2, false);
  const StepPolicy policy = uniform_policy(model, {});
  std::vector<Program> programs = programs_of_ranks(model, {.stage = 2, .ranks = 3}, policy);
  const auto is_collective = [](const Op& op) { return op.lane == Lane::kCollective; };
  std::vector<Op>& ops = programs[1].ops;
  const auto first = std::find_if(ops.begin(), ops.end(), is_collective);
  const auto second = std::find_if(first + 1, ops.end(), is_collective);
  std::swap(*first, *second);
  ASSERT_THAT(verify_ranks(programs), testing::Not(IsEmpty()));
  EXPECT_THAT(verify_ranks(programs).front(), HasSubstr("rank 1"));
  EXPECT_NE(rank_fingerprint(programs[0]), rank_fingerprint(programs[1]));
}

// Counts the elements of all units, of which every rank has a copy at stage 0.
double elements_of(const StepModel& model) {
  double elements = 0;
  for (const ParameterGroup& group : model.groups) {
    elements += static_cast<double>(group.padded_elements);
  }
  return elements;
}

// Counts the bytes of homes, which last from step to step.
double home_bytes(const Program& program, Account account, std::string_view name) {
  double bytes = 0;
  for (const Buffer& buffer : program.buffers) {
    if (buffer.account != account || buffer.life == Life::kTransient) continue;
    if (buffer.name.starts_with(name)) bytes += static_cast<double>(buffer.size_bytes);
  }
  return bytes;
}

// The table of the paper, with bf16 parameters, gradients of 4 or 2 bytes, and N ranks.
TEST(ZeroProgram, DividesWhatItsStageSays) {
  const std::int32_t ranks = 4;
  for (const DType gradient : {DType::kF32, DType::kBF16}) {
    for (const std::int32_t stage : {0, 1, 2, 3}) {
      StepModel model = divided(small_step_model(6, false), {stage, ranks, 1});
      model.state_format.master = MasterForm::kSplit;
      model.gradient_type = gradient;
      StepPolicy policy = uniform_policy(model, {});
      policy.unified = true;
      const Program program = compile_step(model, policy, {});
      const double elements = elements_of(model);
      const auto share = [&](int from) { return stage >= from ? 1.0 / ranks : 1.0; };
      const auto g = static_cast<double>(size_of(gradient));
      EXPECT_EQ(home_bytes(program, Account::kParameters, "param["), 2 * elements * share(3));
      EXPECT_EQ(home_bytes(program, Account::kGradients, "grad["), g * elements * share(2));
      EXPECT_EQ(home_bytes(program, Account::kOptimizerState, "state["), 10 * elements * share(1));
    }
  }
}

// With islands, homes are larger, and what each lane sends follows from it.
TEST(ZeroProgram, DividesInIslandsWhatThePartitionSays) {
  constexpr std::int32_t kRanks = 6;
  constexpr std::int32_t kOfIsland = 3;
  for (const ZeroPartition partition : {ZeroPartition::kHpz, ZeroPartition::kHsdp}) {
    StepModel model = divided(small_step_model(6, false), {.stage = 3,
                                                           .ranks = kRanks,
                                                           .rank = 4,
                                                           .islands = kRanks / kOfIsland,
                                                           .partition = partition});
    model.state_format.master = MasterForm::kSplit;
    StepPolicy policy = uniform_policy(model, {});
    policy.unified = true;
    policy.lookahead = 0;
    const Program program = compile_step(model, policy, {});
    const double elements = elements_of(model);
    const bool is_hpz = partition == ZeroPartition::kHpz;
    const double others = is_hpz ? kRanks : kOfIsland;
    EXPECT_EQ(home_bytes(program, Account::kParameters, "param["), 2 * elements / kOfIsland);
    EXPECT_EQ(home_bytes(program, Account::kOptimizerState, "state["), 10 * elements / others);
    // Sums go over all ranks. A part that each island has is then passed on, once.
    const double passed = elements / kOfIsland / 2;
    EXPECT_DOUBLE_EQ(lane_bytes(program, Lane::kCollective, Account::kGradients),
                     4 * elements * (kRanks - 1) / kRanks);
    EXPECT_DOUBLE_EQ(lane_bytes(program, Lane::kInterIsland, Account::kParameters),
                     is_hpz ? 2 * passed : 0);
    EXPECT_DOUBLE_EQ(lane_bytes(program, Lane::kInterIsland, Account::kGradients),
                     is_hpz ? 0 : 4 * passed);
    EXPECT_EQ(lane_bytes(program, Lane::kCollective, Account::kParameters), 0);
    // Without a limit parameters stay from the forward to the backward.
    EXPECT_DOUBLE_EQ(lane_bytes(program, Lane::kIsland, Account::kParameters),
                     2 * elements * (kOfIsland - 1) / kOfIsland);
  }
}

// A setting of four ranks. sent_by() gives the bytes that a rank sends in a step, per element,
// except for norms and losses.
struct Sent {
  DType gradient = DType::kF32;
  std::int32_t stage = 0;
  std::int32_t micro_batches = 1;
  MicroBatchOrder order = MicroBatchOrder::kMicroBatchMajor;
  bool reduces_micro_batches = false;
  TierBudgets budgets = TierBudgets();
};
constexpr std::int32_t kFour = 4;

StepModel model_for(const Sent& what) {
  StepModel model = divided(small_step_model(6, false), {what.stage, kFour, 1});
  model.gradient_type = what.gradient;
  return model;
}

Program program_for(const Sent& what) {
  const StepModel model = model_for(what);
  StepPolicy policy = uniform_policy(model, {});
  policy.unified = true;
  policy.micro_batches = what.micro_batches;
  policy.order = what.order;
  policy.reduces_micro_batches = what.reduces_micro_batches;
  policy.lookahead = 0;
  return compile_step(model, policy, what.budgets);
}

double sent_by(const Sent& what) {
  const Program program = program_for(what);
  const double sent_share = (kFour - 1.0) / kFour;
  return (lane_bytes(program, Lane::kCollective, Account::kGradients) +
          lane_bytes(program, Lane::kCollective, Account::kParameters)) /
         (elements_of(model_for(what)) * sent_share);
}

// Parameters that stay in memory from forward to backward are gathered once.
TEST(ZeroProgram, SendsWhatItsStageSays) {
  TierBudgets none;
  none.fill(std::size_t{0});  // nothing stays without need
  for (const DType gradient : {DType::kF32, DType::kBF16}) {
    for (const auto& [micro_batches, order] :
         {std::pair{1, MicroBatchOrder::kMicroBatchMajor}, {3, MicroBatchOrder::kLayerMajor}}) {
      const auto g = static_cast<double>(size_of(gradient));
      Sent what{.gradient = gradient, .micro_batches = micro_batches, .order = order};
      EXPECT_DOUBLE_EQ(sent_by(what), 2 * g);
      for (what.stage = 1; what.stage < 3; ++what.stage) EXPECT_DOUBLE_EQ(sent_by(what), g + 2);
      EXPECT_DOUBLE_EQ(sent_by(what), g + 2);
      // The embedding and the head are exceptions: a step uses them once.
      const StepModel model = model_for(what);
      const double once = static_cast<double>(model.groups.front().padded_elements +
                                              model.groups.back().padded_elements);
      const double last_block = static_cast<double>(model.groups[6].padded_elements);
      const double twice = elements_of(model) - once;
      what.budgets = none;
      const double found = sent_by(what);
      EXPECT_LE(found, g + 2 + 2 * twice / elements_of(model));
      EXPECT_GE(found, g + 2 + 2 * (twice - last_block) / elements_of(model));
    }
  }
}

// Compute ops run one after the other, so one that needs the sum over ranks would hold up the
// backward behind it.
TEST(ZeroProgram, NoBackwardOnADeviceWaitsForASumOverRanks) {
  for (std::int32_t stage = 0; stage < 4; ++stage) {
    const StepModel model = divided(small_step_model(4, false), {stage, 2, 0});
    const AllHomes on_device{Tier::kDevice, Tier::kDevice, Tier::kDevice, Tier::kDevice};
    StepPolicy policy = uniform_policy(model, on_device);
    policy.micro_batches = 2;
    const Program program = compile_step(model, policy, {});
    bool has_partials = false;
    std::int64_t backwards_behind = 0;
    for (const Op& op : program.ops) {
      if (op.lane != Lane::kCompute) continue;
      has_partials = has_partials || op.kind == OpKind::kNormPartials;
      backwards_behind += has_partials && op.kind == OpKind::kBackward ? 1 : 0;
    }
    EXPECT_TRUE(has_partials);
    EXPECT_EQ(backwards_behind, 0) << "ZeRO stage " << stage;
  }
}

// More bytes are sent, and there are no whole sums: memory holds only this rank's parts of
// gradients and those that are on their way.
TEST(ZeroProgram, ReducingEveryMicroBatchNeedsLessMemory) {
  Sent what{.stage = 2, .micro_batches = 3};
  const auto gradients = [](const Program& program) {
    const TierUse& use = program.use_of(Tier::kHost);
    return static_cast<double>(use.accounts.at(static_cast<std::size_t>(Account::kGradients)));
  };
  const double by_step = gradients(program_for(what));
  const double sent = sent_by(what);
  what.reduces_micro_batches = true;
  EXPECT_LT(gradients(program_for(what)), by_step / 2);
  // The embedding is an exception: its gradient is made of all micro-batches at once.
  const StepModel model = model_for(what);
  const double embedding =
      static_cast<double>(model.groups.front().padded_elements) / elements_of(model);
  EXPECT_DOUBLE_EQ(sent_by(what), sent + 2 * 4 * (1 - embedding));
}

}  // namespace
}  // namespace terrace
