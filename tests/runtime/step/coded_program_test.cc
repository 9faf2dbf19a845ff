#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>

#include "kernels/wire_ops.h"
#include "runtime/step/step_values.h"
#include "runtime/step/verify.h"
#include "runtime/step/verify_ranks.h"
#include "tests/runtime/step/step_fixture.h"
#include "tests/sanitized.h"

// Steps in which data-parallel ranks exchange codes, as data.
namespace terrace {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr WireForms kInt4Errors{.gradients = WireForm::kInt4, .keeps_errors = true};

struct Step {
  StepModel model;
  StepPolicy policy;
};

Step step_with(const WireForms& wire, std::int32_t stage, Tier errors, bool unified = true) {
  Step step{divided(small_step_model(3, true), {.stage = stage, .ranks = 2, .rank = 1}), {}};
  step.model.wire = wire;
  step.policy = uniform_policy(step.model, {});
  step.policy.unified = unified;
  for (GroupHomes& homes : step.policy.homes) homes.errors = errors;
  return step;
}

std::vector<const Op*> ops_of(const Program& program, OpKind kind) {
  std::vector<const Op*> found;
  for (const Op& op : program.ops) {
    if (op.kind == kind) found.push_back(&op);
  }
  return found;
}

std::int64_t trained_chunks(const StepModel& model) {
  std::int64_t chunks = 0;
  for (std::int32_t g = 0; g < model.group_count(); ++g) chunks += model.trained_chunks(g);
  return chunks;
}

TEST(CodedProgram, SendsTheCodesOfEachChunkAndNoGradient) {
  for (const std::int32_t stage : {1, 2, 3}) {
    const Step step = step_with(kInt4Errors, stage, Tier::kHost);
    const Program program = compile_step(step.model, step.policy, {});
    EXPECT_THAT(verify(program), IsEmpty());
    EXPECT_THAT(ops_of(program, OpKind::kReduceScatter), IsEmpty());
    const std::vector<const Op*> sent = ops_of(program, OpKind::kAllToAll);
    EXPECT_EQ(std::ssize(sent), trained_chunks(step.model));
    for (const Op* op : sent) {
      const std::int64_t elements = step.model.chunk_size(op->group, op->chunk);
      EXPECT_EQ(op->reads.front().size_bytes, coded_bytes(WireForm::kInt4, elements));
      EXPECT_EQ(op->cost.bytes, static_cast<double>(coded_bytes(WireForm::kInt4, elements)) / 2);
      EXPECT_EQ(op->lane, Lane::kCollective);
    }
    for (const OpKind kind : {OpKind::kEncode, OpKind::kDecodeSum}) {
      EXPECT_EQ(std::ssize(ops_of(program, kind)), trained_chunks(step.model));
    }
  }
}

TEST(CodedProgram, GathersCodesOfParametersAtStage3) {
  const Step step = step_with({.parameters = WireForm::kInt8}, 3, Tier::kHost);
  const Program program = compile_step(step.model, step.policy, {});
  EXPECT_THAT(verify(program), IsEmpty());
  const std::vector<const Op*> gathers = ops_of(program, OpKind::kAllGather);
  EXPECT_EQ(ops_of(program, OpKind::kDecode).size(), gathers.size());
  EXPECT_GT(gathers.size(), 0U);
  for (const Op* op : gathers) {
    const std::int64_t elements = step.model.chunk_size(op->group, op->chunk);
    EXPECT_EQ(op->writes.front().size_bytes, coded_bytes(WireForm::kInt8, elements));
  }
}

// Errors take a byte for each parameter and a scale for each block, on each rank.
TEST(CodedProgram, KeepsErrorsInTheirTier) {
  for (const Tier tier : kTiers) {
    const Step step = step_with(kInt4Errors, 2, tier, false);
    const Program program = compile_step(step.model, step.policy, {});
    EXPECT_THAT(verify(program), IsEmpty());
    std::size_t bytes = 0;
    for (const Buffer& buffer : program.buffers) {
      if (buffer.key.kind != BufferKind::kErrors) continue;
      EXPECT_EQ(buffer.tier, tier);
      EXPECT_EQ(buffer.account, Account::kErrors);
      bytes += buffer.size_bytes;
    }
    std::size_t expected = 0;
    for (std::int32_t g = 0; g < step.model.group_count(); ++g) {
      for (std::int64_t c = 0; c < step.model.trained_chunks(g); ++c) {
        const std::size_t codes = coded_bytes(WireForm::kInt8, step.model.chunk_size(g, c));
        const std::size_t home = step.model.home_bytes(StateClass::kErrors, g, c);
        EXPECT_GE(home, codes);
        EXPECT_LT(home, codes + 4096);
        EXPECT_EQ(home % 4096, 0U);
        expected += home;
      }
    }
    EXPECT_EQ(bytes, expected);
    const double moved = tier == Tier::kNvme ? static_cast<double>(expected) : 0;
    EXPECT_EQ(lane_bytes(program, Lane::kRead, Account::kErrors), moved);
    EXPECT_EQ(lane_bytes(program, Lane::kWrite, Account::kErrors), moved);
  }
}

TEST(CodedProgram, HasNoErrorsWithoutFeedback) {
  const Step step = step_with({.gradients = WireForm::kInt8}, 1, Tier::kNvme, false);
  const Program program = compile_step(step.model, step.policy, {});
  for (const Buffer& buffer : program.buffers) EXPECT_NE(buffer.account, Account::kErrors);
  EXPECT_EQ(lane_bytes(program, Lane::kRead, Account::kErrors), 0);
}

// An encoding needs the errors that the step before has left. If it is made twice in a step, the
// second one finds errors of its own step.
TEST(CodedProgram, DoesNotAddErrorsTwice) {
  const Step step = step_with(kInt4Errors, 1, Tier::kHost);
  Program program = compile_step(step.model, step.policy, {});
  EXPECT_THAT(check_step_values(program, 10), IsEmpty());
  const Op again = *ops_of(program, OpKind::kEncode).front();
  program.ops.push_back(again);
  const std::vector<std::string> problems = check_step_values(program, 10);
  ASSERT_FALSE(problems.empty());
  EXPECT_THAT(problems.front(), HasSubstr("needs errors[")) << problems.front();
  EXPECT_THAT(problems.front(), HasSubstr("of the step before"));
}

TEST(CodedProgram, RandomPoliciesVerifyOnAllRanks) {
  std::mt19937 random(23);
  for (int round = 0; round < (kSanitized ? 30 : 150); ++round) {
    StepModel model =
        small_step_model(1 + static_cast<std::int64_t>(random() % 4), random() % 2 == 0);
    if (random() % 3 == 0) model.gradient_type = DType::kBF16;
    ZeroSharding zero = {.stage = 1 + static_cast<std::int32_t>(random() % 3),
                         .ranks = 2 + static_cast<std::int32_t>(random() % 4)};
    model.wire = {.gradients = random() % 2 == 0 ? WireForm::kInt8 : WireForm::kInt4,
                  .parameters = random() % 2 == 0 ? WireForm::kInt8 : WireForm::kPlain,
                  .keeps_errors = random() % 3 != 0};
    StepPolicy policy;
    policy.micro_batches = 1 + static_cast<std::int32_t>(random() % 3);
    policy.order =
        random() % 2 == 0 ? MicroBatchOrder::kLayerMajor : MicroBatchOrder::kMicroBatchMajor;
    policy.unified = random() % 2 == 0;
    policy.updates_wait_for_norm = random() % 2 == 0;
    policy.lookahead = static_cast<std::int32_t>(random() % 4);
    const auto tier = [&] { return kTiers.at(random() % kTierCount); };
    for (std::size_t u = 0; u < model.unit_count(); ++u) {
      add_homes(policy, {tier(), tier(), tier(), tier(), random() % 2 == 0});
      policy.homes.back().errors = tier();
      policy.homes.back().streams_update = random() % 3 == 0;
    }
    SCOPED_TRACE(testing::Message() << "round " << round << ", stage " << zero.stage);
    TierBudgets budgets;
    if (random() % 2 == 0) budgets.fill(16 * kMiB);
    std::vector<Program> programs;
    for (zero.rank = 0; zero.rank < zero.ranks; ++zero.rank) {
      programs.push_back(compile_step(divided(model, zero), policy, budgets));
      ASSERT_THAT(verify(programs.back()), IsEmpty());
    }
    ASSERT_THAT(verify_ranks(programs), IsEmpty());
  }
}

}  // namespace
}  // namespace terrace
