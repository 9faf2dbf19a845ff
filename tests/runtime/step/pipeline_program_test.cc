#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>

#include "runtime/step/verify.h"
#include "runtime/step/verify_ranks.h"
#include "runtime/step/verify_stages.h"
#include "tests/runtime/step/step_fixture.h"

// The changes that a pipeline makes to programs, as data.
namespace terrace {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;

StepModel cut_model(const StepModel& model, std::int32_t stages, std::int32_t stage,
                    std::int32_t virtual_stages = 1) {
  StepModel part = model;
  std::vector<double> costs(model.unit_count(), 1.0);
  part.pipeline = {stages, stage, balance_stages(costs, stages * virtual_stages), virtual_stages};
  return part;
}

std::vector<Program> programs_of_stages(const StepModel& model, std::int32_t stages,
                                        const StepPolicy& policy,
                                        const TierBudgets& budgets = TierBudgets(),
                                        std::int32_t virtual_stages = 1) {
  std::vector<Program> programs;
  for (std::int32_t stage = 0; stage < stages; ++stage) {
    programs.push_back(
        compile_step(cut_model(model, stages, stage, virtual_stages), policy, budgets));
  }
  return programs;
}

TEST(PipelineProgram, RandomPoliciesVerifyOnAllStages) {
  std::mt19937 random(11);
  for (int round = 0; round < 150; ++round) {
    const auto stages = 2 + static_cast<std::int32_t>(random() % 3);
    const auto schedule = static_cast<PipelineSchedule>(random() % 3);
    const bool interleaved = schedule == PipelineSchedule::kInterleaved;
    const auto virtual_stages = interleaved ? 1 + static_cast<std::int32_t>(random() % 3) : 1;
    const auto blocks = static_cast<std::int64_t>(stages * virtual_stages) - 2 +
                        static_cast<std::int64_t>(random() % 5);
    const auto zero_stage = static_cast<std::int32_t>(random() % 4);
    const auto data_ranks = 1 + static_cast<std::int32_t>(random() % 3);
    StepPolicy policy;
    policy.micro_batches = interleaved ? stages * (1 + static_cast<std::int32_t>(random() % 3))
                                       : 1 + static_cast<std::int32_t>(random() % 6);
    policy.unified = random() % 2 == 0;
    policy.has_backward = random() % 8 != 0;
    policy.updates_wait_for_norm = random() % 2 == 0;
    const auto deferred = 1 + static_cast<std::int32_t>(random() % (blocks + 2));
    policy.lookahead = static_cast<std::int32_t>(random() % 4);
    policy.pipeline_schedule = schedule;
    policy.reduces_micro_batches = random() % 3 == 0;
    const DType gradients = random() % 3 == 0 ? DType::kBF16 : DType::kF32;
    const bool tied = random() % 2 == 0;
    const auto tier = [&] { return kTiers.at(random() % kTierCount); };
    for (std::int64_t u = 0; u < blocks + 2; ++u) {
      add_homes(policy, {tier(), tier(), tier(), tier(), random() % 2 == 0});
    }
    TierBudgets budgets;
    if (random() % 2 == 0) budgets.fill(16 * kMiB);
    std::vector<std::vector<Program>> by_rank;
    for (std::int32_t rank = 0; rank < data_ranks; ++rank) {
      StepModel model = divided(small_step_model(blocks, tied), {zero_stage, data_ranks, rank});
      defer_first_updates(policy, model.groups, deferred);
      if (!policy.reduces_micro_batches) model.gradient_type = gradients;
      by_rank.push_back(programs_of_stages(model, stages, policy, budgets, virtual_stages));
      for (const Program& program : by_rank.back())
        ASSERT_THAT(verify(program), IsEmpty()) << round;
      ASSERT_THAT(verify_stages(by_rank.back()), IsEmpty()) << round;
    }
    for (std::int32_t stage = 0; stage < stages; ++stage) {
      std::vector<Program> ranks;
      for (const auto& programs : by_rank)
        ranks.push_back(programs[static_cast<std::size_t>(stage)]);
      ASSERT_THAT(verify_ranks(ranks), IsEmpty()) << round;
    }
  }
}

StepPolicy policy_for(const StepModel& model, std::int32_t micro_batches) {
  StepPolicy policy = uniform_policy(model, {});
  policy.unified = true;
  policy.micro_batches = micro_batches;
  return policy;
}

TEST(PipelineProgram, MessagesThatAreNotMetAreFound) {
  const StepModel model = small_step_model(4, false);
  std::vector<Program> programs = programs_of_stages(model, 3, policy_for(model, 4));
  ASSERT_THAT(verify_stages(programs), IsEmpty());
  std::vector<Op>& ops = programs[1].ops;
  std::vector<Op*> sends;
  for (Op& op : ops) {
    if (op.kind == OpKind::kSend && op.message == Message::kHidden) sends.push_back(&op);
  }
  std::swap(sends.at(0)->micro_batch, sends.at(1)->micro_batch);
  EXPECT_THAT(verify_stages(programs), testing::ElementsAre(HasSubstr("is met by")));
  sends.at(0)->kind = OpKind::kReceive;
  EXPECT_THAT(verify_stages(programs), testing::Not(IsEmpty()));
}

void put_on_lane(std::vector<Program>& programs, Lane from, Lane to) {
  for (Program& program : programs) {
    for (Op& op : program.ops) {
      if (op.lane == from) op.lane = to;
    }
  }
}

// 1F1B with all messages on one lane is the classic deadlock: a stage sends forward to a stage that
// sends back to it.
TEST(PipelineProgram, StagesThatWaitForEachOtherAreFound) {
  const StepModel model = small_step_model(4, false);
  std::vector<Program> programs = programs_of_stages(model, 2, policy_for(model, 4));
  ASSERT_THAT(verify_stages(programs), IsEmpty());
  put_on_lane(programs, Lane::kSendBack, Lane::kSend);
  put_on_lane(programs, Lane::kReceive, Lane::kSend);
  put_on_lane(programs, Lane::kReceiveBack, Lane::kSend);
  EXPECT_THAT(verify_stages(programs), testing::ElementsAre(HasSubstr("waits for itself")));
}

// Without virtual stages one lane for each direction is enough. With them messages go around in a
// ring, and every stage would wait with a send for a stage that does the same.
TEST(PipelineProgram, ARingNeedsLanesForSendsAndReceives) {
  const StepModel model = small_step_model(6, false);
  StepPolicy policy = policy_for(model, 4);
  std::vector<Program> programs = programs_of_stages(model, 2, policy);
  put_on_lane(programs, Lane::kReceive, Lane::kSend);
  put_on_lane(programs, Lane::kReceiveBack, Lane::kSendBack);
  EXPECT_THAT(verify_stages(programs), IsEmpty());
  policy.pipeline_schedule = PipelineSchedule::kInterleaved;
  programs = programs_of_stages(model, 2, policy, {}, 2);
  EXPECT_THAT(verify_stages(programs), IsEmpty());
  put_on_lane(programs, Lane::kReceive, Lane::kSend);
  EXPECT_THAT(verify_stages(programs), testing::ElementsAre(HasSubstr("waits for itself")));
}

// A stage of 1F1B holds at most as many micro-batches as there are stages from itself to the last.
TEST(PipelineProgram, OneForwardOneBackwardHoldsFewActivations) {
  const StepModel model = small_step_model(10, false);
  StepPolicy policy = policy_for(model, 8);
  const auto activations = [&](PipelineSchedule schedule, std::int32_t stage) {
    policy.pipeline_schedule = schedule;
    const Program program = compile_step(cut_model(model, 4, stage), policy, {});
    const TierUse& use = program.use_of(Tier::kHost);
    return static_cast<double>(use.accounts.at(static_cast<std::size_t>(Account::kActivations)));
  };
  for (const std::int32_t stage : {1, 2}) {
    const double ratio =
        activations(PipelineSchedule::k1F1B, stage) / activations(PipelineSchedule::kGpipe, stage);
    EXPECT_LE(ratio, (4.0 - stage + 1) / 8) << stage;  // one micro-batch may be received ahead
  }
}

TEST(PipelineProgram, AStageHasItsUnitsOnly) {
  const StepModel model = small_step_model(6, true);
  const StepPolicy policy = policy_for(model, 2);
  const Program alone = compile_step(model, policy, {});
  const std::vector<Program> programs = programs_of_stages(model, 4, policy);
  const auto bytes_of = [](const Program& program, std::string_view name) {
    std::size_t bytes = 0;
    for (const Buffer& buffer : program.buffers) {
      const bool is_home = buffer.life != Life::kTransient && buffer.name.starts_with(name);
      if (is_home) bytes += buffer.size_bytes;
    }
    return bytes;
  };
  for (const char* state : {"grad[", "state["}) {
    std::size_t sum = 0;
    for (const Program& program : programs) sum += bytes_of(program, state);
    EXPECT_EQ(sum, bytes_of(alone, state)) << state;
  }
  EXPECT_GT(bytes_of(programs[3], "param[0]"), 0U);  // the head's copy of the embedding
  EXPECT_EQ(bytes_of(programs[1], "param[0]"), 0U);
}

// So all stages make their updates at the same time, and not one stage after the other.
TEST(PipelineProgram, ALaterStageUpdatesBeforeItsFirstInput) {
  const StepModel model = small_step_model(10, false);
  const StepPolicy policy = policy_for(model, 2);
  const std::vector<Program> programs = programs_of_stages(model, 3, policy);
  for (std::int32_t stage = 0; stage < 3; ++stage) {
    bool has_computed = false;
    std::int64_t updates_behind = 0;
    for (const Op& op : programs[static_cast<std::size_t>(stage)].ops) {
      has_computed = has_computed || op.kind == OpKind::kForward;
      updates_behind += has_computed && op.kind == OpKind::kUpdate ? 1 : 0;
    }
    EXPECT_EQ(updates_behind > 0, stage == 0) << stage;
  }
}

// In an interleaved pipeline, stage s has the pieces s, s + 3 and s + 6.
TEST(PipelineProgram, AnInterleavedStageHasItsPieces) {
  const StepModel model = small_step_model(10, true);
  StepPolicy policy = policy_for(model, 6);
  policy.pipeline_schedule = PipelineSchedule::kInterleaved;
  const std::vector<Program> programs = programs_of_stages(model, 3, policy, {}, 3);
  std::vector<int> forwards(model.unit_count(), 0);
  for (std::int32_t stage = 0; stage < 3; ++stage) {
    const StepModel part = cut_model(model, 3, stage, 3);
    for (const Op& op : programs[static_cast<std::size_t>(stage)].ops) {
      const bool is_loss = op.kind == OpKind::kBackward && op.unit == model.last_unit();
      if (op.kind != OpKind::kForward && !is_loss) continue;
      ++forwards.at(static_cast<std::size_t>(op.unit));
      EXPECT_TRUE(part.has_unit(op.unit));
    }
  }
  EXPECT_THAT(forwards, testing::Each(6));
}

}  // namespace
}  // namespace terrace
