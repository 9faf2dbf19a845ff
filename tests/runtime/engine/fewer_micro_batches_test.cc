#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "base/log.h"
#include "base/usage_error.h"
#include "tests/runtime/engine/ranks_fixture.h"

// Steps with fewer micro-batches than their program was compiled for: they have the bits of a
// program that was compiled for as many, wherever the state lives.
namespace terrace {
namespace {

// The micro-batches of each data-parallel rank in a step.
using Shares = std::vector<std::int32_t>;

ModelRuntimeOptions options_of(std::string_view family, std::int32_t micro_batches) {
  ModelRuntimeOptions options = tiny_options(tiny_model(family, true, false), DType::kBF16);
  options.placement.micro_batches = micro_batches;
  return options;
}

// Returns a rank's tokens: its part of the step's micro-batches, which are numbered over the ranks,
// then zeros for the program's other micro-batches.
std::vector<std::int32_t> tokens_of(const ModelRuntimeOptions& options, std::int64_t step,
                                    const Shares& shares, std::size_t rank) {
  ModelRuntimeOptions one = options;
  one.placement.micro_batches = 1;
  std::int32_t first = 0;
  for (std::size_t before = 0; before < rank; ++before) first += shares[before];
  std::vector<std::int32_t> tokens;
  for (std::int32_t m = 0; m < shares[rank]; ++m) {
    const std::vector<std::int32_t> more = batch_of_rank(one, step, first + m);
    tokens.insert(tokens.end(), more.begin(), more.end());
  }
  tokens.resize(static_cast<std::size_t>(options.placement.micro_batches * options.batch.lists() *
                                         options.batch.rows()));
  return tokens;
}

// Trains a step for each entry of `steps`.
Curve train(const ModelRuntimeOptions& options, const std::vector<Shares>& steps) {
  const TierPlan plan = plan_model(options);
  SilentLog log;
  ModelRuntime engine(options, plan, log);
  engine.fill_state(RandomState(1234));
  const auto rank = static_cast<std::size_t>(options.ranks.position.data);
  Curve curve;
  for (std::size_t i = 0; i < steps.size(); ++i) {
    const Shares& shares = steps[i];
    const auto step = static_cast<std::int64_t>(i) + 1;
    std::int32_t all = 0;
    for (const std::int32_t share : shares) all += share;
    const std::vector<std::int32_t> tokens = tokens_of(options, step, shares, rank);
    engine.begin_step({step, tokens, all * options.batch.rows(), 2e-3, shares[rank]});
    const StepOutcome outcome = engine.finish_step();
    curve.losses.push_back(outcome.result.loss);
    curve.norms.push_back(outcome.result.gradient_norm);
  }
  engine.drain();
  curve.losses.push_back(engine.evaluate(evaluation_batch(options, 1)));
  return curve;
}

Curve train_ranks_with_shares(const ModelRuntimeOptions& options, const MeshShape& shape,
                              const std::vector<Shares>& steps) {
  auto worlds = make_thread_communicators(shape.ranks(), "world");
  Curve first;
  std::vector<std::jthread> threads;
  for (auto& world : worlds) {
    threads.emplace_back([&, world = world.get()] {
      as_rank(*world, options, shape, [&](const ModelRuntimeOptions& own) {
        Curve curve = train(own, steps);
        curve.losses.pop_back();  // an evaluation has the micro-batches of one rank
        if (world->rank() == 0) first = std::move(curve);
      });
    });
  }
  threads.clear();
  return first;
}

struct Variant {
  std::string name;
  std::function<void(ModelRuntimeOptions&)> set;
};

std::vector<Variant> variants() {
  return {{"unified", [](ModelRuntimeOptions&) {}},
          {"unified_all_on_nvme", [](ModelRuntimeOptions& o) { all_on(o, true, Tier::kNvme); }},
          {"device", [](ModelRuntimeOptions& o) { all_on(o, false, Tier::kDevice); }},
          {"all_on_host", [](ModelRuntimeOptions& o) { all_on(o, false, Tier::kHost); }},
          {"all_on_nvme", [](ModelRuntimeOptions& o) { all_on(o, false, Tier::kNvme); }},
          {"layer_major_with_activations_on_nvme",
           [](ModelRuntimeOptions& o) {
             all_on(o, true, Tier::kNvme);
             o.placement.order = MicroBatchOrder::kLayerMajor;
           }},
          {"layer_major_all_on_nvme",
           [](ModelRuntimeOptions& o) {
             all_on(o, false, Tier::kNvme);
             o.placement.order = MicroBatchOrder::kLayerMajor;
             o.placement.recompute = true;
           }},
          {"updates_at_once", [](ModelRuntimeOptions& o) {
             all_on(o, false, Tier::kHost);
             o.optimizer.max_grad_norm = 1e9;
           }}};
}

class FewerMicroBatches : public testing::TestWithParam<const char*> {
 protected:
  void put_on_drive(ModelRuntimeOptions& options) const {
    options.nvme.directories = {{directory_.path(), std::nullopt}};
  }

  TemporaryDirectory directory_;
};

// Expects steps of `count` micro-batches to have the same bits in a program of as many and in a
// larger one.
void expect_bits_of_as_many(ModelRuntimeOptions options, std::int32_t count,
                            std::int32_t of_program) {
  const std::vector<Shares> steps(3, Shares{count});
  options.placement.micro_batches = count;
  Curve expected = train(options, steps);
  options.placement.micro_batches = of_program;
  Curve found = train(options, steps);
  expected.losses.pop_back();  // their evaluations have other micro-batches
  found.losses.pop_back();
  EXPECT_EQ(found, expected);
}

TEST_P(FewerMicroBatches, HaveTheBitsOfAProgramOfAsMany) {
  for (const Variant& variant : variants()) {
    SCOPED_TRACE(variant.name);
    ModelRuntimeOptions options = options_of(GetParam(), 5);
    put_on_drive(options);
    variant.set(options);
    for (const std::int32_t count : {1, 3}) expect_bits_of_as_many(options, count, 5);
  }
}

TEST_P(FewerMicroBatches, MayChangeFromStepToStepOnAnyTier) {
  const std::vector<Shares> steps = {{2}, {4}, {1}, {3}, {4}, {2}};
  ModelRuntimeOptions plain = options_of(GetParam(), 4);
  const Curve expected = train(plain, steps);
  for (const Variant& variant : variants()) {
    SCOPED_TRACE(variant.name);
    ModelRuntimeOptions options = plain;
    put_on_drive(options);
    variant.set(options);
    if (variant.name == "updates_at_once") plain.optimizer.max_grad_norm = 1e9;
    EXPECT_EQ(train(options, steps),
              variant.name == "updates_at_once" ? train(plain, steps) : expected);
  }
}

// A rank alone has the same samples, and adds them to its gradient in another order.
void expect_near(const Curve& found, const Curve& expected) {
  constexpr double kRelative = 0.01;  // bf16 has 8 bits
  ASSERT_EQ(found.losses.size(), expected.losses.size());
  for (std::size_t step = 0; step < found.losses.size(); ++step) {
    EXPECT_NEAR(found.losses[step], expected.losses[step], kRelative * expected.losses[step]);
    EXPECT_NEAR(found.norms[step], expected.norms[step], kRelative * expected.norms[step]);
  }
}

TEST_P(FewerMicroBatches, MayDifferBetweenRanks) {
  const std::vector<Shares> steps = {{3, 1}, {2, 1}, {1, 3}};
  Curve alone = train(options_of(GetParam(), 4), {{4}, {3}, {4}});
  alone.losses.pop_back();
  ModelRuntimeOptions plain = options_of(GetParam(), 3);
  plain.zero_stage = 0;
  const Curve expected = train_ranks_with_shares(plain, {.data = 2}, steps);
  expect_near(expected, alone);
  for (const std::int32_t stage : {1, 2, 3}) {
    for (const MicroBatchOrder order :
         {MicroBatchOrder::kMicroBatchMajor, MicroBatchOrder::kLayerMajor}) {
      SCOPED_TRACE(stage);
      ModelRuntimeOptions options = plain;
      options.zero_stage = stage;
      options.placement.order = order;
      put_on_drive(options);
      if (stage == 3) all_on(options, true, Tier::kNvme);
      EXPECT_EQ(train_ranks_with_shares(options, {.data = 2}, steps), expected);
    }
  }
}

TEST_P(FewerMicroBatches, MayDifferBetweenRanksInIslands) {
  const std::vector<Shares> steps = {{3, 1, 2, 1}, {1, 2, 1, 3}};
  ModelRuntimeOptions options = options_of(GetParam(), 3);
  options.chunk_elements = 8 * kBlockElements;
  put_on_drive(options);
  const Curve expected = train_ranks_with_shares(options, {.data = 4}, steps);
  options.zero_stage = 3;
  for (const ZeroPartition partition : {ZeroPartition::kHpz, ZeroPartition::kHsdp}) {
    for (const bool is_on_drive : {false, true}) {
      SCOPED_TRACE(fmt::format("{} {}", name_of(partition), is_on_drive));
      ModelRuntimeOptions divided = options;
      divided.zero_partition = partition;
      if (is_on_drive) all_on(divided, true, Tier::kNvme);
      EXPECT_EQ(train_ranks_with_shares(divided, {.data = 4, .islands = 2}, steps), expected);
    }
  }
}

TEST_P(FewerMicroBatches, WorkWithTensorRanksAndStages) {
  const std::vector<Shares> steps = {{2, 1}, {3, 1}, {1, 1}};
  for (const MeshShape& shape :
       {MeshShape{.data = 2, .tensor = 2}, MeshShape{.data = 2, .pipeline = 2}}) {
    ModelRuntimeOptions options = options_of(GetParam(), 3);
    options.zero_stage = 1;
    ModelRuntimeOptions same = options;
    if (shape.tensor == 2) {
      // Tensor-parallel ranks add in an order of their own, so they are compared with themselves.
      same.placement.order = MicroBatchOrder::kLayerMajor;
      same.placement.recompute = true;
      const Curve found = train_ranks_with_shares(options, shape, steps);
      EXPECT_EQ(found, train_ranks_with_shares(same, shape, steps));
    } else {
      EXPECT_EQ(train_ranks_with_shares(options, shape, steps),
                train_ranks_with_shares(same, {.data = 2}, steps));
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Engine, FewerMicroBatches, testing::Values("gpt2", "llama", "gemma2"),
                         [](const auto& info) { return std::string(info.param); });

// A program of this many micro-batches lists them once and repeats them.
TEST(FewerMicroBatchesOfMany, HaveTheBitsOfAProgramOfAsMany) {
  expect_bits_of_as_many(options_of("llama", 3), 3, 96);
}

TEST(FewerMicroBatchesOfAnAdapter, DropWhatAProgramOfAsManyDrops) {
  ModelRuntimeOptions options = options_of("llama", 2);
  add_dropping_adapter(options);
  expect_bits_of_as_many(options, 2, 4);
}

TEST(FewerMicroBatchesMisuse, ImpossibleNumbersAndModelsAreRefused) {
  ModelRuntimeOptions options = options_of("llama", 3);
  const TierPlan plan = plan_model(options);
  SilentLog log;
  ModelRuntime engine(options, plan, log);
  engine.fill_state(RandomState(1234));
  const std::vector<std::int32_t> tokens = batch_of_step(options, 1);
  EXPECT_THROW(engine.begin_step({1, tokens, 48, 1e-3, 0}), UsageError);
  EXPECT_THROW(engine.begin_step({1, tokens, 48, 1e-3, 4}), UsageError);
  engine.begin_step({1, tokens, 48, 1e-3, 1});
  engine.finish_step();

  ModelRuntimeOptions experts = options_of("mixtral", 3);
  const TierPlan of_experts = plan_model(experts);
  ModelRuntime routed(experts, of_experts, log);
  routed.fill_state(RandomState(1234));
  EXPECT_THROW(routed.begin_step({1, batch_of_step(experts, 1), 48, 1e-3, 2}), UsageError);
}

}  // namespace
}  // namespace terrace
