#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "runtime/step/few_repetitions.h"
#include "runtime/step/period.h"
#include "runtime/step/simulate.h"
#include "runtime/step/unrolled_program.h"
#include "runtime/step/verify.h"
#include "tests/runtime/step/step_fixture.h"

// Steps of very many micro-batches, whose programs list the ops of most of them once.
namespace terrace {
namespace {

constexpr std::int32_t kMicroBatches = 100;
constexpr std::int64_t kBlocks = 8;

StepPolicy many_micro_batches(const StepModel& model, const AllHomes& homes) {
  StepPolicy policy = uniform_policy(model, homes);
  policy.micro_batches = kMicroBatches;
  return policy;
}

// Returns a program that has too little of the device to keep the parameters of all units there.
Program compiled(const StepModel& model, const StepPolicy& policy) {
  const auto device = static_cast<std::size_t>(Tier::kDevice);
  TierBudgets budgets;
  budgets.at(device) = 0;
  const std::size_t least = compile_step(model, policy, budgets).use_of(Tier::kDevice).packed_bytes;
  budgets.at(device) = least + 2 * model.group_bytes(1);
  return compile_step(model, policy, budgets);
}

Program compiled(const StepModel& model, const AllHomes& homes) {
  return compiled(model, many_micro_batches(model, homes));
}

TEST(Repetition, StandsForAllMicroBatchesInTheMiddle) {
  const StepModel model = small_step_model(kBlocks, false);
  const StepPolicy policy = many_micro_batches(model, {});
  std::vector<std::int32_t> numbers;
  std::int32_t micro_batches = 0;
  for (const ListedMicroBatch& listed : listed_micro_batches(model, policy)) {
    EXPECT_EQ(listed.number, micro_batches);
    micro_batches += listed.times;
    numbers.push_back(listed.number);
  }
  EXPECT_EQ(micro_batches, kMicroBatches);
  EXPECT_EQ(numbers, (std::vector<std::int32_t>{0, 1, 2, 97, 98, 99}));
}

TEST(Repetition, IsNotMadeWhereMicroBatchesDoNotFollowEachOther) {
  const StepModel model = small_step_model(kBlocks, false);
  StepPolicy policy = many_micro_batches(model, {});
  policy.order = MicroBatchOrder::kLayerMajor;
  EXPECT_EQ(compile_step(model, policy, {}).repetition.times, 1);
  policy.order = MicroBatchOrder::kMicroBatchMajor;
  policy.micro_batches = 63;
  EXPECT_EQ(compile_step(model, policy, {}).repetition.times, 1);
}

// With a lookahead of more than a micro-batch, the ops of neighbouring ones would differ.
TEST(Repetition, HasALookaheadOfLessThanAMicroBatch) {
  const StepModel model = small_step_model(1, false);
  StepPolicy policy = many_micro_batches(model, {.parameters = Tier::kNvme});
  policy.lookahead = 12;
  const Program program = compiled(model, policy);
  EXPECT_EQ(program.repetition.times, kMicroBatches - 5);
  EXPECT_EQ(verify(program), std::vector<std::string>());
}

// Each micro-batch reads its own input, writes its own loss, and leaves a gradient of its own for
// the embedding.
TEST(Repetition, GoesOnFromMicroBatchToMicroBatch) {
  const StepModel model = small_step_model(kBlocks, false);
  const Program program = compiled(model, {.parameters = Tier::kNvme});
  ASSERT_EQ(program.repetition.times, kMicroBatches - 5);
  const UnrolledProgram unrolled(program);
  std::map<std::int32_t, std::size_t> inputs;
  std::map<std::int32_t, std::size_t> losses;
  std::set<std::size_t> gradients;
  for (const Op& op : unrolled.program().ops) {
    if (op.kind == OpKind::kForward && op.unit == 0) {
      inputs[op.micro_batch] = op.find(Role::kTokens)->offset;
    }
    if (op.kind != OpKind::kBackward) continue;
    if (op.unit == model.last_unit()) losses[op.micro_batch] = op.find(Role::kLosses)->offset;
    if (op.micro_batch >= 0) continue;
    for (const Access& read : op.reads) {
      if (read.role != Role::kHiddenGradient) continue;
      gradients.insert(unrolled.program().buffers.at(read.buffer).offset + read.offset);
    }
  }
  ASSERT_EQ(inputs.size(), kMicroBatches);
  ASSERT_EQ(losses.size(), kMicroBatches);
  for (std::int32_t m = 0; m < kMicroBatches; ++m) {
    EXPECT_EQ(inputs.at(m), m * model.tokens_bytes);
    EXPECT_EQ(losses.at(m), m * sizeof(double));
  }
  EXPECT_EQ(gradients.size(), kMicroBatches);
}

TEST(Repetition, IsCountedAsOftenAsItIsDone) {
  const StepModel model = small_step_model(kBlocks, false);
  const Program program = compiled(model, {.parameters = Tier::kNvme, .gradients = Tier::kNvme});
  const UnrolledProgram unrolled(program);
  EXPECT_EQ(op_count(program), unrolled.program().ops.size());
  EXPECT_GT(lane_bytes(program, Lane::kUpload, Account::kParameters), 0);
  for (std::size_t l = 0; l < kLaneCount; ++l) {
    const auto lane = static_cast<Lane>(l);
    EXPECT_EQ(lane_bytes(program, lane), lane_bytes(unrolled.program(), lane)) << name_of(lane);
  }
  EXPECT_NE(to_text(program).find(": 95 times"), std::string::npos);
}

// The same program with a mistake in its repetition.
TEST(Repetition, IsVerified) {
  const StepModel model = small_step_model(kBlocks, false);
  const Program right = compiled(model, {.parameters = Tier::kHost});
  ASSERT_EQ(verify(right), std::vector<std::string>());
  ASSERT_FALSE(right.repetition.handovers.empty());

  Program too_long = right;
  ++too_long.repetition.times;
  EXPECT_NE(verify(too_long).front().find("the last repetition of op"), std::string::npos);

  Program not_handed_over = right;
  not_handed_over.repetition.handovers.clear();
  EXPECT_FALSE(verify(not_handed_over).empty());

  // Something else lies where a repetition finds what the one before has left for it.
  Program overwritten = right;
  const BufferId left = right.repetition.handovers.front().own;
  const Op& first = right.ops.at(static_cast<std::size_t>(right.repetition.begin));
  const auto is_own = [&](const Access& access) {
    return std::ranges::find(right.repetition.filled, access.buffer) !=
           right.repetition.filled.end();
  };
  const auto filled = std::ranges::find_if(first.writes, is_own);
  ASSERT_NE(filled, first.writes.end());
  overwritten.buffers.at(filled->buffer).offset = right.buffers.at(left).offset;
  EXPECT_FALSE(verify(overwritten).empty());
}

// A few repetitions are simulated, and the result is as if all were.
TEST(Repetition, TakesAsLongAsInAListOfAll) {
  const StepModel model = small_step_model(kBlocks, true);
  MachineProfile machine;
  machine.flops_per_s = 1e9;
  machine.upload_bytes_per_s = machine.download_bytes_per_s = 5e8;
  for (const AllHomes& homes :
       {AllHomes{}, AllHomes{.parameters = Tier::kNvme}, AllHomes{.activations = Tier::kNvme},
        AllHomes{.parameters = Tier::kDevice, .gradients = Tier::kNvme},
        AllHomes{.parameters = Tier::kNvme, .gradients = Tier::kNvme, .optimizer = Tier::kNvme}}) {
    const Program program = compiled(model, homes);
    ASSERT_GT(program.repetition.times, 1);
    const UnrolledProgram unrolled(program);
    const SimulationResult few = simulate(program, machine, 4);
    const SimulationResult all = simulate(unrolled.program(), machine, 4);
    EXPECT_NEAR(few.step_s, all.step_s, 0.01 * all.step_s);
    EXPECT_NEAR(few.makespan_s, all.makespan_s, 0.01 * all.makespan_s);
    EXPECT_EQ(few.bottleneck, all.bottleneck);
    EXPECT_NEAR(few.bubble_share, all.bubble_share, 0.01);
    EXPECT_EQ(simulated_step_s(program, machine, 4), few.step_s);
  }
}

}  // namespace
}  // namespace terrace
