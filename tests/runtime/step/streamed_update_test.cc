#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <string>
#include <vector>

#include "runtime/step/simulate.h"
#include "runtime/step/verify.h"
#include "tests/runtime/step/step_fixture.h"

// Updates that run on the device although their optimizer state is at home elsewhere, as they are
// compiled.
namespace terrace {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

constexpr std::int64_t kStreamedBlocks = 4;

// Puts everything on the device except the optimizer state, whose updates are streamed.
StepPolicy streamed_policy(const StepModel& model, Tier optimizer) {
  StepPolicy policy =
      uniform_policy(model, {Tier::kDevice, Tier::kDevice, optimizer, Tier::kDevice, false});
  for (GroupHomes& homes : policy.homes) homes.streams_update = true;
  return policy;
}

StepPolicy on_host(StepPolicy policy) {
  for (GroupHomes& homes : policy.homes) homes.streams_update = false;
  return policy;
}

std::size_t state_bytes(const StepModel& model) {
  std::size_t bytes = 0;
  for (std::int32_t u = 0; u <= model.last_unit(); ++u) {
    for (std::int64_t c = 0; c < model.chunks(u); ++c)
      bytes += model.home_bytes(StateClass::kOptimizer, u, c);
  }
  return bytes;
}

std::vector<OpId> ops_of(const Program& program, OpKind kind, Account account) {
  std::vector<OpId> ids;
  for (OpId i = 0; i < static_cast<OpId>(program.ops.size()); ++i) {
    const Op& op = program.ops[i];
    if (op.kind == kind && (kind == OpKind::kUpdate || op.account == account)) ids.push_back(i);
  }
  return ids;
}

const Buffer& buffer_of(const Program& program, OpId op, Role role) {
  return program.buffers.at(program.ops.at(op).find(role)->buffer);
}

// The ops on the states of all chunks, in the order of the chunks.
struct StreamedOps {
  explicit StreamedOps(const Program& program)
      : uploads(ops_of(program, OpKind::kUpload, Account::kOptimizerState)),
        updates(ops_of(program, OpKind::kUpdate, Account::kOptimizerState)),
        downloads(ops_of(program, OpKind::kDownload, Account::kOptimizerState)) {}

  std::vector<OpId> uploads, updates, downloads;
};

TEST(StreamedUpdate, AChunkComesIsUpdatedAndLeaves) {
  const StepModel model = small_step_model(kStreamedBlocks, false);
  const Program program = compile_step(model, streamed_policy(model, Tier::kHost), {});
  ASSERT_THAT(verify(program), IsEmpty());
  const StreamedOps ops(program);
  std::int64_t chunks = 0;
  for (std::int32_t u = 0; u <= model.last_unit(); ++u) chunks += model.chunks(u);
  ASSERT_EQ(ops.updates.size(), static_cast<std::size_t>(chunks));
  ASSERT_EQ(ops.uploads.size(), ops.updates.size());
  ASSERT_EQ(ops.downloads.size(), ops.updates.size());
  for (std::size_t i = 0; i < ops.updates.size(); ++i) {
    const Op& update = program.ops[ops.updates[i]];
    EXPECT_EQ(update.lane, Lane::kCompute);
    for (const auto* accesses : {&update.reads, &update.writes}) {
      for (const Access& access : *accesses) {
        EXPECT_EQ(program.buffers.at(access.buffer).tier, Tier::kDevice);
      }
    }
    const Access& state = *update.find(Role::kState);
    for (const Access& access : {program.ops[ops.uploads[i]].writes.front(),
                                 program.ops[ops.downloads[i]].reads.front()}) {
      EXPECT_EQ(access.buffer, state.buffer);
      EXPECT_EQ(access.offset, state.offset);
      EXPECT_EQ(access.size_bytes, state.size_bytes);
    }
    EXPECT_EQ(program.ops[ops.uploads[i]].reads.front().buffer,
              program.ops[ops.downloads[i]].writes.front().buffer);
    EXPECT_LT(ops.uploads[i], ops.updates[i]);
    EXPECT_LT(ops.updates[i], ops.downloads[i]);
  }
}

// The states pass in turns through two places, each as large as the largest chunk's state.
TEST(StreamedUpdate, PassesThroughTwoPlaces) {
  for (const bool waits : {true, false}) {
    StepModel model = small_step_model(kStreamedBlocks, false);
    StepPolicy policy = streamed_policy(model, Tier::kHost);
    policy.updates_wait_for_norm = waits;
    const Program program = compile_step(model, policy, {});
    ASSERT_THAT(verify(program), IsEmpty());
    const StreamedOps ops(program);
    for (const bool deferred : {true, false}) {
      std::vector<std::string> names;
      for (const OpId update : ops.updates) {
        if (program.ops[update].is_deferred() != deferred) continue;
        const Buffer& place = buffer_of(program, update, Role::kState);
        EXPECT_EQ(place.size_bytes, model.home_bytes(StateClass::kOptimizer, 1, 0));
        EXPECT_EQ(place.account, Account::kStaging);
        names.push_back(place.name);
      }
      EXPECT_EQ(names.empty(), waits && !deferred);
      for (std::size_t i = 0; i < names.size(); ++i) {
        EXPECT_EQ(names[i] == names.front(), i % 2 == 0) << i;
      }
    }
  }
}

// If everything else is at home on the device, only the state and the norm's partial sums cross the
// link. No update is left to the host's processors.
TEST(StreamedUpdate, MovesTheStateAndNothingElse) {
  for (const MasterForm master : {MasterForm::kFp32, MasterForm::kSplit}) {
    StepModel model = small_step_model(kStreamedBlocks, false);
    model.state_format.master = master;
    const StepPolicy policy = streamed_policy(model, Tier::kHost);
    const Program program = compile_step(model, policy, {});
    const auto bytes = static_cast<double>(state_bytes(model));
    for (const Lane lane : {Lane::kUpload, Lane::kDownload}) {
      EXPECT_EQ(lane_bytes(program, lane, Account::kOptimizerState), bytes);
      EXPECT_EQ(lane_bytes(program, lane, Account::kParameters), 0);
    }
    EXPECT_EQ(lane_bytes(program, Lane::kUpload, Account::kGradients), 0);
    EXPECT_EQ(lane_bytes(program, Lane::kDownload, Account::kGradients),
              static_cast<double>(model.partials()) * sizeof(double));
    EXPECT_EQ(lane_bytes(program, Lane::kUpdate), 0);
    const Program other = compile_step(model, on_host(policy), {});
    EXPECT_GT(lane_bytes(other, Lane::kDownload, Account::kGradients), bytes / 4);
    EXPECT_GT(lane_bytes(other, Lane::kUpdate), 0);
  }
}

TEST(StreamedUpdate, TheDeviceHoldsTwoChunksMore) {
  StepModel model = small_step_model(kStreamedBlocks, false);
  // The device holds hardly any activations, so that the updates are the peak.
  model.hidden_bytes = 4 * kKiB;
  for (UnitModel& unit : model.units) unit.saved_bytes = std::min(unit.saved_bytes, 4 * kKiB);
  StepPolicy policy = streamed_policy(model, Tier::kHost);
  for (const std::int32_t lookahead : {0, 3}) {
    policy.lookahead = lookahead;
    const TierUse use = compile_step(model, policy, {}).use_of(Tier::kDevice);
    const std::size_t staging = use.accounts.at(static_cast<std::size_t>(Account::kStaging));
    EXPECT_EQ(staging, 2 * model.home_bytes(StateClass::kOptimizer, 1, 0));
    const TierUse other = compile_step(model, on_host(policy), {}).use_of(Tier::kDevice);
    constexpr std::size_t kScalars = 4096;
    EXPECT_LE(use.packed_bytes, other.packed_bytes + staging + kScalars);
  }
}

// A chunk may come as soon as the chunk two before it has left, while the one between is updated.
TEST(StreamedUpdate, LinksAndUpdatesWorkAtTheSameTime) {
  const StepModel model = small_step_model(kStreamedBlocks, false);
  const Program program = compile_step(model, streamed_policy(model, Tier::kHost), {});
  MachineProfile machine;
  machine.op_overhead_s = 0;
  machine.compute_cores = machine.update_cores = 0;
  machine.memory_bytes_per_s = 1e15;
  machine.compute_bytes_per_s =
      3 * machine.upload_bytes_per_s;  // an update takes as long as a copy
  constexpr int kSteps = 4;
  std::vector<SimulatedOp> timeline;
  simulate(program, machine, kSteps, &timeline);
  const StreamedOps ops(program);
  constexpr std::int32_t kRun = 2;
  const auto time_of = [&](OpId op) {
    return *std::ranges::find_if(
        timeline, [&](const SimulatedOp& one) { return one.op == op && one.run == kRun; });
  };
  for (std::size_t i = 0; i + 1 < ops.updates.size(); ++i) {
    EXPECT_LE(time_of(ops.uploads[i + 1]).start_s, time_of(ops.downloads[i]).start_s) << i;
    if (i == 0) continue;
    EXPECT_GE(time_of(ops.uploads[i + 1]).start_s, time_of(ops.downloads[i - 1]).end_s) << i;
  }
}

// The state goes through the host, from the drive and back to it.
TEST(StreamedUpdate, StateOnTheDriveTakesTheWayThroughTheHost) {
  const StepModel model = small_step_model(kStreamedBlocks, false);
  const Program program = compile_step(model, streamed_policy(model, Tier::kNvme), {});
  ASSERT_THAT(verify(program), IsEmpty());
  const auto bytes = static_cast<double>(state_bytes(model));
  for (const Lane lane : {Lane::kRead, Lane::kUpload, Lane::kDownload, Lane::kWrite}) {
    EXPECT_EQ(lane_bytes(program, lane, Account::kOptimizerState), bytes) << name_of(lane);
  }
  EXPECT_EQ(lane_bytes(program, Lane::kUpdate), 0);
}

// Parameters that are at home elsewhere are updated in the place where the forward finds them.
TEST(StreamedUpdate, FetchedParametersAreFetchedOnce) {
  StepModel model = small_step_model(kStreamedBlocks, false);
  model.state_format.master = MasterForm::kSplit;
  StepPolicy policy = streamed_policy(model, Tier::kHost);
  for (GroupHomes& homes : policy.homes) homes.parameters = Tier::kHost;
  policy.lookahead = 0;
  TierBudgets budgets;
  budgets.front() = std::size_t{1};  // nothing is kept without need
  const Program streamed = compile_step(model, policy, budgets);
  ASSERT_THAT(verify(streamed), IsEmpty());
  const Program other = compile_step(model, on_host(policy), budgets);
  EXPECT_EQ(lane_bytes(streamed, Lane::kUpload, Account::kParameters),
            lane_bytes(other, Lane::kUpload, Account::kParameters));
}

TEST(StreamedUpdate, WithoutEffectInUnifiedModeAndAtHome) {
  const StepModel model = small_step_model(kStreamedBlocks, true);
  StepPolicy unified = streamed_policy(model, Tier::kHost);
  unified.unified = true;
  EXPECT_EQ(compile_step(model, unified, {}), compile_step(model, on_host(unified), {}));
  const StepPolicy at_home = streamed_policy(model, Tier::kDevice);
  EXPECT_EQ(compile_step(model, at_home, {}), compile_step(model, on_host(at_home), {}));
}

TEST(StreamedUpdate, ARankStreamsItsShards) {
  const ZeroSharding zero{1, 2, 1};
  const StepModel model = divided(small_step_model(kStreamedBlocks, true), zero);
  const Program program = compile_step(model, streamed_policy(model, Tier::kHost), {});
  ASSERT_THAT(verify(program), IsEmpty());
  EXPECT_EQ(lane_bytes(program, Lane::kUpload, Account::kOptimizerState),
            static_cast<double>(state_bytes(model)));
  for (const OpId update : StreamedOps(program).updates) {
    EXPECT_EQ(buffer_of(program, update, Role::kState).size_bytes,
              model.home_bytes(StateClass::kOptimizer, 0, 0));
  }
}

TEST(StreamedUpdate, RandomPoliciesVerifyAndSimulate) {
  std::mt19937 random(19);
  const auto tier = [&random] { return kTiers.at(random() % kTierCount); };
  for (int round = 0; round < 200; ++round) {
    SCOPED_TRACE(round);
    const ZeroSharding zero{static_cast<std::int32_t>(random() % 4),
                            1 + static_cast<std::int32_t>(random() % 2), 0};
    StepModel model = divided(
        small_step_model(1 + static_cast<std::int64_t>(random() % 4), random() % 2 == 0), zero);
    model.state_format.master = random() % 2 == 0 ? MasterForm::kFp32 : MasterForm::kSplit;
    StepPolicy policy = uniform_policy(model, {});
    policy.micro_batches = 1 + static_cast<std::int32_t>(random() % 3);
    if (random() % 2 == 0) policy.order = MicroBatchOrder::kLayerMajor;
    policy.updates_wait_for_norm = random() % 2 == 0;
    policy.lookahead = static_cast<std::int32_t>(random() % 5);
    policy.homes.clear();
    policy.activations.clear();
    for (std::size_t u = 0; u < model.unit_count(); ++u) {
      add_homes(policy, {tier(), tier(), tier(), tier(), random() % 2 == 0});
      policy.homes.back().streams_update = random() % 3 != 0;
    }
    TierBudgets budgets;
    if (random() % 2 == 0) budgets.fill(std::size_t{1});  // space is reused the most
    const Program program = compile_step(model, policy, budgets);
    ASSERT_THAT(verify(program), IsEmpty()) << to_text(program);
    simulate(program, {}, 3);  // checks that no more is live than was planned
  }
}

}  // namespace
}  // namespace terrace
