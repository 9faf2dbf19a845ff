#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "base/error.h"
#include "base/log.h"
#include "tests/runtime/engine/ranks_fixture.h"

// The gradient of a small batch, from which the gradient noise scale follows: it is right, it has
// the same bits wherever the state lives, and measuring it changes no bit of the training.
namespace terrace {
namespace {

struct NoisyRun {
  Curve curve;
  std::vector<SmallBatch> small;  // by step, where it is measured

  friend bool operator==(const NoisyRun&, const NoisyRun&) = default;
};

ModelRuntimeOptions noisy_options(std::string_view family, bool tied) {
  ModelRuntimeOptions options = tiny_options(tiny_model(family, tied, true), DType::kBF16);
  options.measures_gradient_noise = true;
  return options;
}

std::int64_t small_batch_tokens(const ModelRuntimeOptions& options,
                                std::span<const std::int32_t> tokens) {
  const auto one = static_cast<std::size_t>(options.batch.lists() * options.batch.rows());
  return counted_targets(options, options.ranks.shape.data > 1 ? tokens : tokens.first(one));
}

NoisyRun train(const ModelRuntimeOptions& options, std::int64_t steps) {
  const TierPlan plan = plan_model(options);
  SilentLog log;
  ModelRuntime engine(options, plan, log);
  engine.fill_state(RandomState(1234));
  NoisyRun run;
  for (std::int64_t step = 1; step <= steps; ++step) {
    const std::vector<std::int32_t> tokens = batch_of_step(options, step);
    engine.begin_step({.step = step,
                       .tokens = tokens,
                       .target_tokens = target_tokens_of_step(options, step),
                       .learning_rate = 2e-3,
                       .small_batch_tokens = small_batch_tokens(options, tokens)});
    const StepResult result = engine.finish_step().result;
    run.curve.losses.push_back(result.loss);
    run.curve.norms.push_back(result.gradient_norm);
    EXPECT_EQ(result.small_batch.has_value(), options.measures_gradient_noise);
    if (result.small_batch) run.small.push_back(*result.small_batch);
  }
  engine.drain();
  run.curve.losses.push_back(engine.evaluate(evaluation_batch(options, 1)));  // of the new state
  return run;
}

NoisyRun train_on_ranks(const ModelRuntimeOptions& options, const MeshShape& shape,
                        std::int64_t steps) {
  auto worlds = make_thread_communicators(shape.ranks(), "world");
  std::vector<NoisyRun> runs(static_cast<std::size_t>(shape.ranks()));
  std::vector<std::jthread> threads;
  for (auto& world : worlds) {
    threads.emplace_back([&, world = world.get()] {
      as_rank(*world, options, shape, [&](const ModelRuntimeOptions& own) {
        NoisyRun& run = runs.at(static_cast<std::size_t>(world->rank()));
        run = train(own, steps);
        run.curve.losses.pop_back();  // an evaluation has the micro-batches of one rank
      });
    });
  }
  threads.clear();
  for (const NoisyRun& run : runs) EXPECT_EQ(run, runs.front());
  return runs.front();
}

struct Variant {
  std::string name;
  std::function<void(ModelRuntimeOptions&)> set;
};

std::vector<Variant> variants() {
  return {{"unified_all_on_nvme", [](ModelRuntimeOptions& o) { all_on(o, true, Tier::kNvme); }},
          {"device", [](ModelRuntimeOptions& o) { all_on(o, false, Tier::kDevice); }},
          {"sums_on_host", [](ModelRuntimeOptions& o) { all_on(o, false, Tier::kHost); }},
          {"all_on_nvme", [](ModelRuntimeOptions& o) { all_on(o, false, Tier::kNvme); }},
          {"recompute", [](ModelRuntimeOptions& o) { o.placement.recompute = true; }},
          {"layer_major",
           [](ModelRuntimeOptions& o) { o.placement.order = MicroBatchOrder::kLayerMajor; }},
          {"layer_major_all_on_nvme", [](ModelRuntimeOptions& o) {
             all_on(o, false, Tier::kNvme);
             o.placement.order = MicroBatchOrder::kLayerMajor;
           }}};
}

struct Model {
  std::string family;
  bool tied = false;
};

class GradientNoiseOfModels : public testing::TestWithParam<Model> {
 protected:
  ModelRuntimeOptions options() const { return noisy_options(GetParam().family, GetParam().tied); }
  void put_on_drive(ModelRuntimeOptions& options) const {
    options.nvme.directories = {{directory_.path(), std::nullopt}};
  }

 private:
  TemporaryDirectory directory_;
};

TEST_P(GradientNoiseOfModels, ChangesNoBitAndHasTheSameBitsEverywhere) {
  const NoisyRun expected = train(options(), 3);
  ASSERT_EQ(expected.small.size(), 3U);
  for (const Variant& variant : variants()) {
    SCOPED_TRACE(variant.name);
    ModelRuntimeOptions measured = options();
    put_on_drive(measured);
    variant.set(measured);
    EXPECT_EQ(train(measured, 3), expected);
    measured.measures_gradient_noise = false;
    EXPECT_EQ(train(measured, 3).curve, expected.curve);
  }
}

// A step of four micro-batches computes gradients that are exactly four times smaller than in a
// step of one micro-batch.
TEST_P(GradientNoiseOfModels, IsThatOfTheFirstMicroBatch) {
  ModelRuntimeOptions alone = options();
  alone.measures_gradient_noise = false;
  alone.placement.micro_batches = 1;
  for (const bool has_documents : {false, true}) {
    if (has_documents && GetParam().family == "gpt2") continue;
    ModelRuntimeOptions measured = options();
    measured.batch.has_documents = alone.batch.has_documents = has_documents;
    const SmallBatch small = train(measured, 1).small.front();
    // Both steps begin with the same micro-batch: the data of a rank follows from its number.
    ASSERT_EQ(batch_of_rank(alone, 1, 0).front(), batch_of_rank(measured, 1, 0).front());
    const double norm = train(alone, 1).curve.norms.front();
    const double tolerance = has_documents ? 1e-2 : 1e-12;  // the factors are no powers of two
    EXPECT_NEAR(std::sqrt(small.squared_norm), norm, tolerance * norm) << has_documents;
    EXPECT_EQ(small.tokens_of_step, target_tokens_of_step(measured, 1));
    EXPECT_NEAR(small.tokens, static_cast<double>(target_tokens_of_step(alone, 1)), 1e-9);
  }
}

TEST_P(GradientNoiseOfModels, OfRanksIsTheMeanOfTheirOwn) {
  ModelRuntimeOptions plain = options();
  plain.placement.micro_batches = 2;
  plain.zero_stage = 0;
  const NoisyRun expected = train_on_ranks(plain, {.data = 2}, 2);
  double mean = 0;
  for (const std::int32_t rank : {0, 1}) {
    ModelRuntimeOptions alone = plain;
    alone.measures_gradient_noise = false;
    const TierPlan plan = plan_model(alone);
    SilentLog log;
    ModelRuntime engine(alone, plan, log);
    engine.fill_state(RandomState(1234));
    const std::vector<std::int32_t> tokens = batch_of_rank(alone, 1, rank);
    engine.begin_step({1, tokens, counted_targets(alone, tokens), 2e-3});
    const double norm = engine.finish_step().result.gradient_norm;
    mean += norm * norm / 2;
    engine.drain();
  }
  EXPECT_NEAR(expected.small.front().squared_norm, mean, 1e-12 * mean);
  for (const std::int32_t stage : {1, 2, 3}) {
    for (const MicroBatchOrder order :
         {MicroBatchOrder::kMicroBatchMajor, MicroBatchOrder::kLayerMajor}) {
      SCOPED_TRACE(stage);
      ModelRuntimeOptions divided = plain;
      divided.zero_stage = stage;
      divided.placement.order = order;
      put_on_drive(divided);
      if (stage == 1) all_on(divided, false, Tier::kDevice);
      if (stage == 2) all_on(divided, false, Tier::kHost);
      if (stage == 3) all_on(divided, true, Tier::kNvme);
      EXPECT_EQ(train_on_ranks(divided, {.data = 2}, 2), expected);
    }
  }
  EXPECT_EQ(train_on_ranks(plain, {.data = 2, .pipeline = 2}, 2), expected);
  plain.measures_gradient_noise = false;
  EXPECT_EQ(train_on_ranks(plain, {.data = 2}, 2).curve, expected.curve);
}

INSTANTIATE_TEST_SUITE_P(Engine, GradientNoiseOfModels,
                         testing::Values(Model{"gpt2", true}, Model{"llama", false},
                                         Model{"gemma2", true}, Model{"mixtral", false}),
                         [](const auto& info) { return info.param.family; });

// Tensor-parallel ranks have the elements of norms alike, which count once.
TEST(GradientNoise, OfTensorRanksIsAboutThatOfOneRankEach) {
  ModelRuntimeOptions options = tiny_options(tiny_model("llama", true, false), DType::kF32);
  options.measures_gradient_noise = true;
  options.placement.micro_batches = 2;
  options.zero_stage = 1;
  const NoisyRun expected = train_on_ranks(options, {.data = 2}, 2);
  const NoisyRun divided = train_on_ranks(options, {.data = 2, .tensor = 2}, 2);
  ASSERT_EQ(divided.small.size(), 2U);
  for (std::size_t step = 0; step < 2; ++step) {
    const double norm = expected.small[step].squared_norm;
    const double tolerance = step == 0 ? 1e-5 : 4e-3;  // an update magnifies roundings
    EXPECT_NEAR(divided.small[step].squared_norm, norm, tolerance * norm);
  }
}

TEST(GradientNoise, OfPipelineStagesIsThatOfOne) {
  const ModelRuntimeOptions options = noisy_options("llama", false);
  NoisyRun expected = train(options, 2);
  expected.curve.losses.pop_back();
  EXPECT_EQ(train_on_ranks(options, {.pipeline = 2}, 2), expected);
}

// A program of 128 micro-batches lists most of them once, as a repetition.
TEST(GradientNoise, OfManyMicroBatchesIsThatOfFew) {
  ModelRuntimeOptions options = noisy_options("llama", false);
  const double few = train(options, 1).small.front().squared_norm;
  options.placement.micro_batches = 128;
  const double many = train(options, 1).small.front().squared_norm;
  EXPECT_NEAR(many, few, 1e-12 * few);
}

TEST(GradientNoise, OfFewerMicroBatchesIsTheSameUnlessThereIsOne) {
  ModelRuntimeOptions options = noisy_options("gpt2", true);
  const TierPlan plan = plan_model(options);
  SilentLog log;
  ModelRuntime engine(options, plan, log);
  engine.fill_state(RandomState(1234));
  const std::vector<std::int32_t> tokens = batch_of_step(options, 1);
  const std::int64_t rows = options.batch.rows();
  const auto begin = [&](std::int64_t step, std::int32_t micro_batches) {
    engine.begin_step({.step = step,
                       .tokens = tokens,
                       .target_tokens = micro_batches * rows,
                       .learning_rate = 0,
                       .micro_batches = micro_batches,
                       .small_batch_tokens = rows});
    return engine.finish_step().result.small_batch;
  };
  const std::optional<SmallBatch> of_four = begin(1, 4);
  const std::optional<SmallBatch> of_two = begin(2, 2);
  const std::optional<SmallBatch> of_one = begin(3, 1);
  engine.drain();
  ASSERT_TRUE(of_four && of_two);
  EXPECT_NEAR(of_two->squared_norm, of_four->squared_norm, 1e-12 * of_four->squared_norm);
  EXPECT_FALSE(of_one.has_value());
}

std::string refusal_of(const ModelRuntimeOptions& options) {
  try {
    plan_model(options);
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "no error";
}

TEST(GradientNoise, WithoutASecondSizeOfBatchIsRefused) {
  using testing::HasSubstr;
  ModelRuntimeOptions options = tiny_options(tiny_model("llama", true, false), DType::kBF16);
  options.measures_gradient_noise = true;
  ModelRuntimeOptions one = options;
  one.placement.micro_batches = 1;
  EXPECT_THAT(refusal_of(one),
              testing::AllOf(HasSubstr("one micro-batch on one data-parallel rank"),
                             HasSubstr("set placement.micro_batches to 2 or more")));
  ModelRuntimeOptions reduces = options;
  reduces.placement.reduces_micro_batches = true;
  EXPECT_THAT(refusal_of(reduces), HasSubstr("reduce gradients once a step"));
  ModelRuntimeOptions tensor = options;
  tensor.ranks.shape.tensor = 2;
  EXPECT_THAT(refusal_of(tensor), HasSubstr("tensor-parallel ranks"));
  ModelRuntimeOptions stages = options;
  stages.ranks.shape.pipeline = 2;
  EXPECT_THAT(refusal_of(stages), HasSubstr("such as a tied embedding"));
}

}  // namespace
}  // namespace terrace
