#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>

#include "kernels/cpu/cpu_kernels.h"
#include "runtime/model/unit_compute.h"
#include "runtime/step/verify.h"
#include "runtime/step/verify_ranks.h"
#include "runtime/step/verify_stages.h"
#include "tests/runtime/engine/engine_fixture.h"
#include "tests/runtime/step/step_fixture.h"

// The changes that tensor parallelism makes to a program, as data.
namespace terrace {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr BatchShape kBatch = {2, 24};

StepModel model_of(std::string_view family, bool tied, const TensorSplit& split,
                   std::int32_t data_ranks = 1) {
  const ModelConfig config = tiny_model(family, tied, false);
  const UnitCompute compute(config, parameter_layout(config, data_ranks, split),
                            {DType::kBF16, kBatch, split}, cpu_kernels());
  StepModel model(compute.model(2, 1));
  model.chunk_elements = 4 * data_ranks * kBlockElements;
  return model;
}

StepPolicy policy_of_part(const StepModel& model, std::int32_t micro_batches) {
  StepPolicy policy = uniform_policy(model, {});
  policy.unified = true;
  policy.micro_batches = micro_batches;
  return policy;
}

StepPolicy random_policy(std::mt19937& random, const StepModel& model) {
  StepPolicy policy;
  policy.micro_batches = 1 + static_cast<std::int32_t>(random() % 3);
  policy.unified = random() % 2 == 0;
  policy.has_backward = random() % 8 != 0;
  policy.updates_wait_for_norm = random() % 2 == 0;
  policy.lookahead = static_cast<std::int32_t>(random() % 4);
  const auto tier = [&] { return kTiers.at(random() % kTierCount); };
  for (std::size_t u = 0; u < model.unit_count(); ++u) {
    add_homes(policy, {tier(), tier(), tier(), tier(), random() % 2 == 0});
  }
  return policy;
}

// Two data ranks of two tensor ranks each, in one or more stages.
TEST(TensorProgram, RandomPoliciesVerifyOnAllRanks) {
  std::mt19937 random(5);
  for (int round = 0; round < 40; ++round) {
    SCOPED_TRACE(round);
    const std::string_view family = random() % 2 == 0 ? "llama" : "gpt2";
    const bool tied = random() % 2 == 0;
    const bool shares_rows = random() % 3 != 0;
    const auto stages = 1 + static_cast<std::int32_t>(random() % 3);
    const auto zero_stage = static_cast<std::int32_t>(random() % 4);
    const StepPolicy policy = [&] {
      StepPolicy made = random_policy(random, model_of(family, tied, {}));
      if (stages == 1 && random() % 2 == 0) made.order = MicroBatchOrder::kLayerMajor;
      return made;
    }();
    TierBudgets budgets;
    if (random() % 2 == 0) budgets.fill(4 * kMiB);
    std::vector<std::vector<Program>> by_stage(static_cast<std::size_t>(stages));
    for (std::int32_t data = 0; data < 2; ++data) {
      for (std::int32_t tensor = 0; tensor < 2; ++tensor) {
        StepModel model = model_of(family, tied, {2, tensor, shares_rows}, 2);
        model.zero = {zero_stage, 2, data};
        std::vector<Program> programs;
        for (std::int32_t stage = 0; stage < stages; ++stage) {
          const std::vector<double> costs(model.unit_count(), 1.0);
          if (stages > 1) model.pipeline = {stages, stage, balance_stages(costs, stages)};
          programs.push_back(compile_step(model, policy, budgets));
          ASSERT_THAT(verify(programs.back()), IsEmpty());
          by_stage[static_cast<std::size_t>(stage)].push_back(programs.back());
        }
        if (stages > 1) {
          ASSERT_THAT(verify_stages(programs), IsEmpty());
        }
      }
    }
    for (const std::vector<Program>& ranks : by_stage) {
      ASSERT_THAT(verify_ranks(ranks), IsEmpty());
      ASSERT_EQ(ranks[0], ranks[1]);  // tensor ranks: the same program
      ASSERT_EQ(rank_fingerprint(ranks.front()), rank_fingerprint(ranks.back()));
    }
  }
}

struct Exchanges {
  int gathers = 0, scatters = 0, sums = 0;
  friend bool operator==(const Exchanges&, const Exchanges&) = default;
};

// For a block and a micro-batch, the forward makes 2 all-gathers and 2 reduce-scatters of R x C, or
// 2 all-reduces. The backward makes the same ones for the gradients, and exchanges the norms'
// results once more.
TEST(TensorProgram, ExchangesWhatThePaperSays) {
  const auto totals = [](bool shares_rows) {
    const StepModel model = model_of("llama", true, {2, 0, shares_rows});
    const Program program = compile_step(model, policy_of_part(model, 1), {});
    Exchanges found;
    for (const Op& op : program.ops) {
      if (op.lane != Lane::kTensor || op.unit != 3 || op.account != Account::kActivations) continue;
      found.gathers += op.kind == OpKind::kAllGather ? 1 : 0;
      found.scatters += op.kind == OpKind::kReduceScatter ? 1 : 0;
      found.sums += op.kind == OpKind::kAllReduce ? 1 : 0;
    }
    return found;
  };
  EXPECT_EQ(totals(true), (Exchanges{2 + 4, 2 + 2, 0}));
  EXPECT_EQ(totals(false), (Exchanges{0, 0, 2 + 2}));
}

TEST(TensorProgram, SendsTheBytesOfTheFormula) {
  const std::int32_t ranks = 2;
  const std::int32_t micro_batches = 3;
  for (const bool shares_rows : {false, true}) {
    for (const bool recompute : {false, true}) {
      const StepModel model = model_of("llama", true, {ranks, 0, shares_rows});
      StepPolicy policy = policy_of_part(model, micro_batches);
      for (UnitActivations& unit : policy.activations) unit.recompute = recompute;
      const double rows = 2.0 * 48 * 64;  // bf16, R = 48, C = 64
      const double blocks = 6;
      const double share = (ranks - 1.0) / ranks;
      // Each all-reduce is a reduce-scatter and an all-gather.
      const double of_block =
          shares_rows ? 4 + 6 + (recompute ? 3 : 0) : 4 + 4 + (recompute ? 2 : 0);
      const double of_ends = 2 + 2;  // the embedding's and the head's
      const double row_sums = ranks * 48 * 3 * sizeof(float);
      const double activations =
          micro_batches * share * ((blocks * of_block + of_ends) * rows + row_sums);
      const double norms = shares_rows ? 2 * share * (2 * blocks + 1) * 64 * sizeof(float) : 0;
      const Program program = compile_step(model, policy, {});
      EXPECT_DOUBLE_EQ(lane_bytes(program, Lane::kTensor, Account::kActivations), activations);
      EXPECT_DOUBLE_EQ(lane_bytes(program, Lane::kTensor, Account::kGradients), norms);
    }
  }
}

// The activations that a rank keeps between forward and backward, and the parameters that it has.
TEST(TensorProgram, DividesActivationsAndState) {
  const auto bytes_of = [](const Program& program, std::string_view name) {
    double bytes = 0;
    for (const Buffer& buffer : program.buffers) {
      if (buffer.name.starts_with(name)) bytes += static_cast<double>(buffer.size_bytes);
    }
    return bytes;
  };
  const auto compiled = [](const TensorSplit& split) {
    const StepModel model = model_of("llama", false, split);
    return compile_step(model, policy_of_part(model, 1), {});
  };
  const Program one = compiled({});
  const Program half = compiled({2, 0, true});
  const Program all_rows = compiled({2, 0, false});
  EXPECT_LT(bytes_of(half, "param["), 0.6 * bytes_of(one, "param["));
  EXPECT_LT(bytes_of(half, "saved["), 0.55 * bytes_of(one, "saved["));
  EXPECT_LE(bytes_of(half, "hidden["), 0.51 * bytes_of(one, "hidden[") + 4096 * 7);
  EXPECT_GT(bytes_of(all_rows, "saved["), bytes_of(half, "saved["));
}

// An exchange of the first stage waits for a message that comes back from the second stage, which
// waits for the result of the exchange.
TEST(TensorProgram, AnExchangeInACircleOfStagesIsFound) {
  std::vector<Program> programs;
  for (std::int32_t stage = 0; stage < 2; ++stage) {
    StepModel model = model_of("llama", true, {2, 0, true});
    const std::vector<double> costs(model.unit_count(), 1.0);
    model.pipeline = {2, stage, balance_stages(costs, 2)};
    programs.push_back(compile_step(model, policy_of_part(model, 2), {}));
  }
  ASSERT_THAT(verify_stages(programs), IsEmpty());
  std::vector<Op>& ops = programs.front().ops;
  const auto first =
      std::ranges::find_if(ops, [](const Op& op) { return op.lane == Lane::kTensor; });
  const auto back = std::ranges::find_if(ops, [](const Op& op) {
    return op.kind == OpKind::kReceive && op.message == Message::kHiddenGradient;
  });
  first->after.push_back({static_cast<OpId>(back - ops.begin()), 0});
  EXPECT_THAT(verify_stages(programs), testing::ElementsAre(HasSubstr("waits for itself")));
}

TEST(TensorProgram, RanksThatDisagreeAreFound) {
  const StepModel model = model_of("llama", true, {2, 0, true});
  const Program program = compile_step(model, policy_of_part(model, 1), {});
  std::vector<Program> programs = {program, program};
  ASSERT_THAT(verify_ranks(programs), IsEmpty());
  std::vector<Op>& ops = programs[1].ops;
  const auto is_exchange = [](const Op& op) { return op.lane == Lane::kTensor; };
  const auto first = std::ranges::find_if(ops, is_exchange);
  const auto second = std::find_if(first + 1, ops.end(), is_exchange);
  std::swap(*first, *second);
  ASSERT_THAT(verify_ranks(programs), testing::Not(IsEmpty()));
  EXPECT_THAT(verify_ranks(programs).front(), HasSubstr("rank 1"));
  EXPECT_NE(rank_fingerprint(programs[0]), rank_fingerprint(programs[1]));
}

}  // namespace
}  // namespace terrace
