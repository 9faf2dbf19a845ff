// The losses and the figures of routers in trainings of small models. tests/golden compares their
// gradients with transformers.
#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "kernels/expert_ops.h"
#include "tests/runtime/engine/step_switches.h"

namespace terrace {
namespace {

ModelRuntimeOptions routed_options(double balance, double z) {
  ModelRuntimeOptions options = tiny_options(tiny_model("qwen3_moe", false, false), DType::kF32);
  options.model.experts.balance_coefficient = balance;
  options.model.experts.z_coefficient = z;
  return options;
}

TEST(RouterLosses, BecomeSmallerWhereTheyAreTrainedOn) {
  constexpr std::int64_t kSomeSteps = 12;
  const RouterFigures plain = train_tiny(routed_options(0, 0), kSomeSteps).curve.router.back();
  const RouterFigures balanced = train_tiny(routed_options(1, 0), kSomeSteps).curve.router.back();
  const RouterFigures small = train_tiny(routed_options(0, 1), kSomeSteps).curve.router.back();
  EXPECT_LT(balanced.balance_loss, plain.balance_loss - 1e-3);
  EXPECT_LT(small.z_loss, plain.z_loss - 1e-3);
}

// The loss of a step is the cross entropy alone.
TEST(RouterLosses, AreInTheGradientAndNotInTheLoss) {
  const Curve plain = train_tiny(routed_options(0, 0), 1).curve;
  for (const auto& [balance, z] : {std::pair(0.5, 0.0), std::pair(0.0, 0.5)}) {
    const Curve with = train_tiny(routed_options(balance, z), 1).curve;
    EXPECT_EQ(with.losses, plain.losses);
    EXPECT_EQ(with.router, plain.router);
    EXPECT_GT(std::abs(with.norms[0] - plain.norms[0]), 1e-4 * plain.norms[0]);
  }
}

// Ranks that have the micro-batches of one rank compute the same, except for the order of sums.
TEST(RouterLosses, AreMeansOverMicroBatchesAndRanks) {
  const ModelRuntimeOptions one = routed_options(0.5, 0.5);
  const Curve alone = train_ranks(one, 1, 0).curves.front();
  ModelRuntimeOptions half = one;
  half.placement.micro_batches /= 2;
  const std::vector<Curve> shared = train_ranks(half, 2, 0).curves;
  for (const Curve& curve : shared) {
    EXPECT_EQ(curve.router[0], alone.router[0]);
    EXPECT_NEAR(curve.norms[0], alone.norms[0], 1e-5 * alone.norms[0]);
  }
  const double without = train_tiny(routed_options(0, 0), 1).curve.norms[0];
  EXPECT_GT(std::abs(alone.norms[0] - without), 1e-3 * without);
}

// Tensor-parallel ranks add up their gradients of the router, and must not add these losses twice.
TEST(RouterLosses, CountOnceAmongTensorRanks) {
  for (const auto& [balance, z] : {std::pair(0.5, 0.0), std::pair(0.0, 0.5)}) {
    ModelRuntimeOptions options = routed_options(balance, z);
    const Curve alone = train_ranks(options, 1, 0).curves.front();
    for (const bool shares_rows : {false, true}) {
      options.sequence_parallel = shares_rows;
      const Curve shared = train_ranks(options, MeshShape{.tensor = 2}, 0).curves.front();
      EXPECT_NEAR(shared.norms[0], alone.norms[0], 1e-5 * alone.norms[0]) << shares_rows;
      ASSERT_EQ(shared.router.size(), alone.router.size());
      const RouterFigures last = alone.router.back();
      EXPECT_NEAR(shared.router.back().balance_loss, last.balance_loss, 1e-4 * last.balance_loss);
      EXPECT_NEAR(shared.router.back().z_loss, last.z_loss, 1e-4 * last.z_loss);
    }
  }
}

// The stages tell each other the sums of their routers, so each computes the same as one rank.
TEST(RouterLosses, HaveTheSameBitsInPipelineStages) {
  ModelRuntimeOptions options = routed_options(0.5, 0.5);
  const RankedRun alone = train_ranks(options, 1, 0);
  const RankedRun stages = train_ranks(options, MeshShape{.pipeline = 2}, 0);
  EXPECT_EQ(stages.curves.front(), alone.curves.front());
  EXPECT_EQ(stages.state, alone.state);
  expect_bits_over_ranks(options, {.data = 2}, 2);
}

// --- padding ------------------------------------------------------------------------------------

// Returns a batch whose sequences are one document, and from `rows` on padding.
std::vector<std::int32_t> padded_batch(const ModelRuntimeOptions& options, std::int32_t rows,
                                       std::int32_t token, std::int32_t target) {
  std::vector<std::int32_t> tokens, targets, positions, first_keys;
  const auto add = [&](std::int32_t token_of_row, std::int32_t target_of_row, std::int32_t first,
                       std::int32_t row) {
    tokens.push_back(token_of_row);
    targets.push_back(target_of_row);
    positions.push_back(row - first);
    first_keys.push_back(first);
  };
  for (std::int64_t s = 0; s < options.batch.sequences; ++s) {
    for (std::int32_t row = 0; row < options.batch.positions; ++row) {
      const std::int32_t text = (row * 7 + static_cast<std::int32_t>(s)) % 100;
      row < rows ? add(text, (text + 7) % 100, 0, row) : add(token, target, rows, row);
    }
  }
  std::vector<std::int32_t> batch = tokens;
  for (const auto* list : {&targets, &positions, &first_keys}) {
    batch.insert(batch.end(), list->begin(), list->end());
  }
  return batch;
}

Curve step_of(const ModelRuntimeOptions& options, const std::vector<std::int32_t>& batch) {
  const TierPlan plan = plan_model(options);
  SilentLog log;
  ModelRuntime engine(options, plan, log);
  engine.fill_state(RandomState(1234));
  engine.begin_step({1, batch, counted_targets(options, batch), 1e-3});
  const StepResult result = engine.finish_step().result;
  engine.drain();
  return {{result.loss}, {result.gradient_norm}, {}, {}, {result.router.value()}};
}

TEST(RouterLosses, LeavePaddingOut) {
  ModelRuntimeOptions options = routed_options(0.5, 0.5);
  options.batch.has_documents = true;
  options.placement.micro_batches = 1;
  constexpr std::int32_t kRows = 13;
  const Curve padded = step_of(options, padded_batch(options, kRows, 0, kPaddingTarget));
  EXPECT_EQ(step_of(options, padded_batch(options, kRows, 5, kPaddingTarget)), padded);
  // A row that is not trained on counts for the router.
  const Curve counted = step_of(options, padded_batch(options, kRows, 0, -1));
  EXPECT_EQ(counted.losses, padded.losses);
  EXPECT_NE(counted.norms, padded.norms);
  EXPECT_NE(counted.router, padded.router);
  const Curve nothing = step_of(options, padded_batch(options, 1, 0, kPaddingTarget));
  EXPECT_TRUE(std::isfinite(nothing.norms[0]));
}

}  // namespace
}  // namespace terrace
