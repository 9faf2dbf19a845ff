#include "runtime/step/compile.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>

#include "runtime/step/simulate.h"
#include "runtime/step/verify.h"
#include "tests/runtime/step/step_fixture.h"

namespace terrace {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

Tier random_tier(std::mt19937& random) { return kTiers.at(random() % kTierCount); }

StepPolicy random_policy(const StepModel& model, std::mt19937& random) {
  StepPolicy policy;
  policy.micro_batches = 1 + static_cast<std::int32_t>(random() % 3);
  policy.order =
      random() % 2 == 0 ? MicroBatchOrder::kLayerMajor : MicroBatchOrder::kMicroBatchMajor;
  policy.unified = random() % 3 == 0;
  policy.updates_wait_for_norm = random() % 3 != 0;
  policy.lookahead = static_cast<std::int32_t>(random() % 5);
  const bool keeps_first_gradient = random() % 2 == 0;
  for (std::size_t u = 0; u < model.unit_count(); ++u) {
    add_homes(policy, {random_tier(random), random_tier(random), random_tier(random),
                       random_tier(random), random() % 2 == 0});
    policy.homes.back().streams_update = random() % 3 == 0;
  }
  policy.homes.front().keeps_gradient = keeps_first_gradient;
  return policy;
}

// The bytes that the updates of one step read from and write to the drive, and the bytes that stay
// there.
struct UpdateBytes {
  double moved = 0, stored = 0;
};

UpdateBytes update_bytes(StepModel model, MasterForm master) {
  model.state_format.master = master;
  StepPolicy policy =
      uniform_policy(model, {Tier::kNvme, Tier::kHost, Tier::kNvme, Tier::kHost, false});
  policy.unified = true;
  const Program program = compile_step(model, policy, {});
  UpdateBytes bytes;
  for (const Op& op : program.ops) {
    const bool is_of_update = op.parts != kOfThisStep || op.account == Account::kOptimizerState;
    if (is_of_update && (op.lane == Lane::kRead || op.lane == Lane::kWrite)) {
      bytes.moved += op.cost.bytes;
    }
  }
  bytes.stored = static_cast<double>(program.use_of(Tier::kNvme).live_bytes);
  return bytes;
}

TEST(CompileStep, SplitMastersStoreAndMoveLess) {
  const StepModel model = small_step_model(4, false);
  const auto elements = static_cast<double>(model.partials() * kBlockElements);
  const UpdateBytes whole = update_bytes(model, MasterForm::kFp32);
  const UpdateBytes split = update_bytes(model, MasterForm::kSplit);
  EXPECT_EQ(whole.stored, 14 * elements);
  EXPECT_EQ(split.stored, 12 * elements);
  EXPECT_EQ(whole.moved, 26 * elements);
  EXPECT_EQ(split.moved, 24 * elements);
}

// Returns the profile of a machine on which the compute of a step takes as long as its traffic with
// the drive.
MachineProfile balanced(const Program& program) {
  double flops = 0;
  for (const Op& op : program.ops) flops += op.cost.flops;
  MachineProfile profile;
  profile.flops_per_s = flops * profile.drive.disk_bytes_per_s /
                        (lane_bytes(program, Lane::kRead) + lane_bytes(program, Lane::kWrite));
  return profile;
}

StepModel model_with_split_masters(StepModel model) {
  model.state_format.master = MasterForm::kSplit;
  return model;
}

TEST(CompileStep, RandomPoliciesVerify) {
  std::mt19937 random(7);
  for (int round = 0; round < 300; ++round) {
    StepModel model =
        small_step_model(1 + static_cast<std::int64_t>(random() % 5), random() % 2 == 0);
    model.state_format.master = random() % 2 == 0 ? MasterForm::kFp32 : MasterForm::kSplit;
    const StepPolicy policy = random_policy(model, random);
    TierBudgets budgets;
    if (random() % 2 == 0) {
      const Program loose = compile_step(model, policy, budgets);
      for (const Tier tier : kTiers) {
        budgets.at(static_cast<std::size_t>(tier)) =
            loose.use_of(tier).packed_bytes * (3 + random() % 8) / 10;
      }
    }
    const Program program = compile_step(model, policy, budgets);
    ASSERT_THAT(verify(program), IsEmpty()) << "round " << round << "\n" << to_text(program);
    ASSERT_EQ(program, compile_step(model, policy, budgets)) << "not a pure function";
  }
}

TEST(CompileStep, EvaluationSharesTheHomesOfTraining) {
  std::mt19937 random(11);
  for (int round = 0; round < 60; ++round) {
    const StepModel model = small_step_model(3, random() % 2 == 0);
    StepPolicy policy = random_policy(model, random);
    const Program training = compile_step(model, policy, {});
    policy.has_backward = false;
    const Program evaluation = compile_step(model, policy, {}, &training);
    ASSERT_THAT(verify(evaluation), IsEmpty());
    for (const Buffer& own : evaluation.buffers) {
      if (own.life != Life::kPersistent) continue;
      for (const Buffer& other : training.buffers) {
        if (other.key != own.key) continue;
        EXPECT_EQ(other.offset, own.offset) << own.name;
      }
    }
  }
}

// verify() must notice the mistakes that a pass could make, such as a missing edge or a moved
// buffer.
TEST(Verify, FindsAMissingEdge) {
  const StepModel model = small_step_model(4, true);
  const StepPolicy policy =
      uniform_policy(model, {Tier::kNvme, Tier::kHost, Tier::kNvme, Tier::kHost, false});
  const Program program = compile_step(model, policy, {});
  ASSERT_THAT(verify(program), IsEmpty());
  int needed = 0;
  int edges = 0;
  for (std::size_t i = 0; i < program.ops.size(); ++i) {
    for (std::size_t e = 0; e < program.ops[i].after.size(); ++e) {
      Program broken = program;
      broken.ops[i].after.erase(broken.ops[i].after.begin() + static_cast<std::ptrdiff_t>(e));
      ++edges;
      if (!verify(broken, 1).empty()) ++needed;
    }
  }
  // Some edges follow from others; most do not.
  EXPECT_GT(needed, edges / 3);
}

// The load that an update and the forward after it share runs in all parts.
TEST(Verify, FindsWhatAPartLeavesUnwritten) {
  const StepModel model = small_step_model(3, false);
  for (const bool unified : {false, true}) {
    StepPolicy policy =
        uniform_policy(model, {Tier::kNvme, Tier::kHost, Tier::kNvme, Tier::kHost, false});
    policy.unified = unified;
    StepModel split = model;
    split.state_format.master = MasterForm::kSplit;
    const Program program = compile_step(split, policy, {});
    ASSERT_THAT(verify(program), IsEmpty());
    Program not_in_the_drain = program;
    Program not_in_the_prologue = program;
    for (OpId i = 0; i < static_cast<OpId>(program.ops.size()); ++i) {
      if (program.ops[i].parts != kOfBothSteps) continue;
      not_in_the_drain.ops[i].parts = kOfThisStep;
      not_in_the_prologue.ops[i].parts = kOfStepBefore;
    }
    EXPECT_THAT(verify(not_in_the_drain, 1), ElementsAre(HasSubstr("nothing in the drain")));
    EXPECT_THAT(verify(not_in_the_prologue, 1), ElementsAre(HasSubstr("nothing in the prologue")));
  }
}

TEST(Verify, FindsOverlap) {
  const StepModel model = small_step_model(3, false);
  const StepPolicy policy =
      uniform_policy(model, {Tier::kHost, Tier::kHost, Tier::kHost, Tier::kHost, true});
  const Program program = compile_step(model, policy, {});
  int found = 0;
  for (std::size_t b = 0; b < program.buffers.size(); ++b) {
    Program broken = program;
    if (broken.buffers[b].tier != Tier::kDevice) continue;
    for (const Buffer& other : program.buffers) {
      if (other.key.kind == BufferKind::kWorkspace) broken.buffers[b].offset = other.offset;
    }
    if (broken == program) continue;
    if (!verify(broken, 1).empty()) ++found;
  }
  EXPECT_GT(found, 10);
}

TEST(CompileStep, LayerMajorFetchesEachUnitOncePerPass) {
  StepModel model = small_step_model(8, true);
  model.hidden_bytes = 4 * kKiB;
  model.groups[0].padded_elements = kBlockElements;
  for (UnitModel& unit : model.units) unit.saved_bytes = unit.saved_bytes == 0 ? 0 : 8 * kKiB;
  StepPolicy policy =
      uniform_policy(model, {Tier::kHost, Tier::kHost, Tier::kHost, Tier::kDevice, true});
  policy.micro_batches = 4;
  policy.lookahead = 1;
  const std::size_t two_units = 2 * 6 * kBlockElements * model.parameter_bytes(1);
  const auto upload_bytes = [&](MicroBatchOrder order) {
    policy.order = order;
    TierBudgets budgets;
    budgets[0] = std::size_t{1};
    budgets[0] =
        compile_step(model, policy, budgets).use_of(Tier::kDevice).packed_bytes + two_units;
    const Program program = compile_step(model, policy, budgets);
    EXPECT_THAT(tiers_over_budget(program, budgets), IsEmpty());
    return lane_bytes(program, Lane::kUpload, Account::kParameters);
  };
  EXPECT_LE(3 * upload_bytes(MicroBatchOrder::kLayerMajor),
            upload_bytes(MicroBatchOrder::kMicroBatchMajor));
}

TEST(CompileStep, LookaheadCostsSpaceAndMovesLoadsForward) {
  const StepModel model = small_step_model(6, false);
  StepPolicy policy =
      uniform_policy(model, {Tier::kNvme, Tier::kHost, Tier::kNvme, Tier::kDevice, true});
  std::vector<std::size_t> peaks;
  for (const int lookahead : {0, 1, 3}) {
    policy.lookahead = lookahead;
    TierBudgets budgets;
    const Program program = compile_step(model, policy, budgets);
    peaks.push_back(program.use_of(Tier::kHost).packed_bytes);
  }
  EXPECT_LT(peaks[0], peaks[1]);
  EXPECT_LT(peaks[1], peaks[2]);
}

TEST(CompileStep, UpdatesThatDoNotWaitKeepFewGradients) {
  StepModel model = small_step_model(8, false);
  model.state_format.master = MasterForm::kSplit;  // the update reads the parameters
  StepPolicy policy =
      uniform_policy(model, {Tier::kNvme, Tier::kHost, Tier::kNvme, Tier::kHost, false});
  policy.unified = true;
  policy.lookahead = 0;
  const Program waiting = compile_step(model, policy, {});
  policy.updates_wait_for_norm = false;
  const Program at_once = compile_step(model, policy, {});
  const auto carried_gradients = [](const Program& program) {
    int carried = 0;
    for (const Buffer& buffer : program.buffers) {
      if (buffer.account == Account::kGradients && buffer.life == Life::kCarried) ++carried;
    }
    return carried;
  };
  EXPECT_EQ(carried_gradients(waiting), 10);
  EXPECT_EQ(carried_gradients(at_once), kUsualDeferredUnits);
  // Parameters are read once for an update and the forward beside it, or once for a backward and
  // the update beside it.
  for (const Program& program : {waiting, at_once}) {
    const double parameters = lane_bytes(program, Lane::kWrite, Account::kParameters);
    EXPECT_LE(lane_bytes(program, Lane::kRead, Account::kParameters), 2 * parameters);
  }
  EXPECT_EQ(lane_bytes(at_once, Lane::kWrite), lane_bytes(waiting, Lane::kWrite));
}

TEST(CompileStep, GradientsThatAreUsedUpAtOnceStayInMemory) {
  const StepModel model = small_step_model(8, false);
  StepPolicy policy =
      uniform_policy(model, {Tier::kNvme, Tier::kNvme, Tier::kNvme, Tier::kHost, false});
  policy.unified = true;
  const auto bytes_of_first = [&model](std::size_t units) {
    double bytes = 0;
    for (std::size_t u = 0; u < units; ++u) {
      bytes += static_cast<double>(model.groups.at(u).padded_elements) * sizeof(float);
    }
    return bytes;
  };
  const auto expect_traffic = [&](double bytes) {
    const Program program = compile_step(model, policy, {});
    EXPECT_EQ(lane_bytes(program, Lane::kWrite, Account::kGradients), bytes);
    EXPECT_EQ(lane_bytes(program, Lane::kRead, Account::kGradients), bytes);
  };
  expect_traffic(bytes_of_first(model.unit_count()));
  policy.updates_wait_for_norm = false;
  defer_first_updates(policy, model.groups, 4);
  expect_traffic(bytes_of_first(4));
  policy.homes.front().keeps_gradient = true;
  expect_traffic(bytes_of_first(4) - bytes_of_first(1));
}

// The gradients may still be on their way to the drive, and reads start in order.
TEST(CompileStep, GradientsOfTheStepBeforeAreReadAfterTheRestOfTheirStage) {
  const StepModel model = small_step_model(8, false);
  StepPolicy policy =
      uniform_policy(model, {Tier::kNvme, Tier::kNvme, Tier::kNvme, Tier::kHost, false});
  policy.unified = true;
  const auto states_before_gradients = [&] {
    const Program program = compile_step(model, policy, {});
    int states = 0;
    for (const Op& op : program.ops) {
      if (op.lane != Lane::kRead) continue;
      if (op.account == Account::kGradients) break;
      if (op.account == Account::kOptimizerState) ++states;
    }
    return states;
  };
  for (const std::int32_t lookahead : {0, 1, 3}) {
    policy.lookahead = lookahead;
    EXPECT_EQ(states_before_gradients(), 1);
  }
}

// A step that begins with updates finds their states in memory: the step before has read them.
TEST(CompileStep, StatesOfTheFirstUpdatesAreReadUnderTheEndOfTheStepBefore) {
  StepModel model = small_step_model(8, true);
  for (UnitModel& unit : model.units) {  // the backward leaves no free room
    unit.saved_bytes = std::min<std::size_t>(unit.saved_bytes, kKiB);
  }
  StepPolicy policy =
      uniform_policy(model, {Tier::kHost, Tier::kHost, Tier::kNvme, Tier::kHost, false});
  policy.unified = true;
  const auto carried_states = [&](const TierBudgets& budgets) {
    const Program program = compile_step(model, policy, budgets);
    EXPECT_THAT(verify(program), IsEmpty());
    EXPECT_THAT(tiers_over_budget(program, budgets), IsEmpty());
    int carried = 0;
    for (std::size_t i = 0; i < program.ops.size(); ++i) {
      const Op& op = program.ops[i];
      if (op.lane != Lane::kRead || op.is_deferred()) continue;
      ++carried;
      EXPECT_EQ(program.buffers.at(op.writes.front().buffer).life, Life::kCarried);
      EXPECT_TRUE(std::none_of(program.ops.begin() + static_cast<std::ptrdiff_t>(i),
                               program.ops.end(),
                               [](const Op& later) { return later.is_deferred(); }));
    }
    return carried;
  };
  policy.lookahead = 0;
  EXPECT_EQ(carried_states({}), 0);
  const std::size_t least = compile_step(model, policy, {}).use_of(Tier::kHost).packed_bytes;
  for (const std::int32_t lookahead : {1, 3, 6}) {
    policy.lookahead = lookahead;
    EXPECT_EQ(carried_states({}), lookahead);
  }
  TierBudgets budgets;
  budgets[1] = least;
  EXPECT_LT(carried_states(budgets), 6);
}

// Without slack, the next buffer in the place would wait until the drive has the updated state.
TEST(CompileStep, PlacesOfCarriedStatesHaveSlackToo) {
  const StepModel model = small_step_model(8, true);
  StepPolicy policy =
      uniform_policy(model, {Tier::kNvme, Tier::kHost, Tier::kNvme, Tier::kHost, false});
  policy.unified = true;
  const auto sharers_of_carried_states = [&](const TierBudgets& budgets) {
    const Program program = compile_step(model, policy, budgets);
    EXPECT_THAT(verify(program), IsEmpty());
    int sharers = 0;
    for (const Buffer& carried : program.buffers) {
      if (carried.life != Life::kCarried || carried.account != Account::kStaging) continue;
      sharers += static_cast<int>(std::ranges::count_if(program.buffers, [&](const Buffer& other) {
        return &other != &carried && other.tier == carried.tier &&
               other.offset < carried.offset + carried.size_bytes &&
               carried.offset < other.offset + other.size_bytes;
      }));
    }
    return sharers;
  };
  EXPECT_GT(sharers_of_carried_states({}), 0);
  TierBudgets budgets;
  budgets[1] = 8 * compile_step(model, policy, {}).use_of(Tier::kHost).packed_bytes;
  EXPECT_EQ(sharers_of_carried_states(budgets), 0);
}

// Reads start in order: a read for the third unit must not stand behind those for the sixth.
TEST(CompileStep, ParametersAreReadInTheOrderOfTheForward) {
  const StepModel model = small_step_model(8, false);
  StepPolicy policy =
      uniform_policy(model, {Tier::kNvme, Tier::kHost, Tier::kNvme, Tier::kHost, false});
  policy.unified = true;
  policy.updates_wait_for_norm = false;
  for (const std::int32_t lookahead : {2, 6, 12}) {
    policy.lookahead = lookahead;
    const Program program = compile_step(model_with_split_masters(model), policy, {});
    std::vector<std::int32_t> units;
    for (const Op& op : program.ops) {
      const bool is_parameter = op.lane == Lane::kRead && op.account == Account::kParameters;
      if (is_parameter && std::ranges::count(units, op.unit) == 0) units.push_back(op.unit);
    }
    EXPECT_TRUE(std::ranges::is_sorted(units)) << "lookahead " << lookahead;
  }
}

TEST(CompileStep, StatesThatAreCarriedShortenAStep) {
  const StepModel model = small_step_model(8, true);
  StepPolicy policy =
      uniform_policy(model, {Tier::kHost, Tier::kHost, Tier::kNvme, Tier::kHost, false});
  policy.unified = true;
  policy.updates_wait_for_norm = false;
  policy.lookahead = 3;
  Program program = compile_step(model, policy, {});
  const double carried_s = simulate(program, balanced(program), 4).step_s;
  policy.lookahead = 0;
  program = compile_step(model, policy, {});
  EXPECT_LT(carried_s, 0.95 * simulate(program, balanced(program), 4).step_s);
}

TEST(CompileStep, RoomInTheBudgetLetsTheNextStepsLoadsStartUnderTheEndOfThisOne) {
  const StepModel model = small_step_model(8, false);
  StepPolicy policy =
      uniform_policy(model, {Tier::kNvme, Tier::kHost, Tier::kNvme, Tier::kHost, false});
  policy.unified = true;
  TierBudgets budgets;
  const Program loose = compile_step(model, policy, budgets);
  const MachineProfile profile = balanced(loose);
  std::vector<double> seconds;
  for (const std::size_t times : {1, 4}) {
    budgets[1] = times * loose.use_of(Tier::kHost).packed_bytes;
    const Program program = compile_step(model, policy, budgets);
    EXPECT_THAT(verify(program), IsEmpty());
    EXPECT_THAT(tiers_over_budget(program, budgets), IsEmpty());
    seconds.push_back(simulate(program, profile, 4).step_s);
  }
  EXPECT_LT(seconds[1], 0.9 * seconds[0]);
}

TEST(CompileStep, PacksWithinATenthOfWhatIsLive) {
  for (const bool tied : {false, true}) {
    const StepModel model = small_step_model(24, tied);
    for (const bool unified : {false, true}) {
      StepPolicy policy =
          uniform_policy(model, {Tier::kNvme, Tier::kHost, Tier::kNvme, Tier::kDevice, true});
      policy.unified = unified;
      policy.micro_batches = 2;
      policy.order = MicroBatchOrder::kLayerMajor;
      const Program program = compile_step(model, policy, {});
      for (const Tier tier : {Tier::kDevice, Tier::kHost}) {
        const TierUse& use = program.use_of(tier);
        EXPECT_LE(static_cast<double>(use.packed_bytes), 1.1 * static_cast<double>(use.live_bytes))
            << name_of(tier) << " tied " << tied << " unified " << unified;
      }
    }
  }
}

// Slack uses the part of a budget that is left, and the ledger does not count it among what the
// step needs.
TEST(StepCompile, SlackIsAnAccountOfItsOwn) {
  const StepModel model = small_step_model(6, false);
  const AllHomes homes{Tier::kNvme, Tier::kNvme, Tier::kNvme};
  StepPolicy policy = uniform_policy(model, homes);
  policy.lookahead = 0;
  const TierUse needed = compile_step(model, policy, {}).use_of(Tier::kHost);
  TierBudgets budgets;
  budgets.at(static_cast<std::size_t>(Tier::kHost)) = 2 * needed.packed_bytes;
  const TierUse use = compile_step(model, policy, budgets).use_of(Tier::kHost);
  constexpr auto kSlack = static_cast<std::size_t>(Account::kSlack);
  EXPECT_EQ(needed.accounts.at(kSlack), 0U);
  EXPECT_GT(use.accounts.at(kSlack), 0U);
  EXPECT_EQ(use.accounts.at(kSlack), use.live_bytes - needed.live_bytes);
  EXPECT_LE(use.packed_bytes, 2 * needed.packed_bytes);
}

}  // namespace
}  // namespace terrace
