#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <numeric>
#include <span>
#include <string>
#include <vector>

#include "base/error.h"
#include "tests/runtime/checkpoint/snapshot_state.h"
#include "tests/runtime/engine/fake_gpu.h"
#include "tests/runtime/engine/ranks_fixture.h"

// Training in fp16 with its loss scale, by the kernels of GPUs on a fake one. The scales are so
// large and the windows so short that a few steps show every case.
namespace terrace {
namespace {

using test::FakeGpuBackend;

// Loss scales for the models here: with kFits no gradient overflows, with kOverflows one does. The
// limit in between depends on the gradients.
constexpr float kFits = 0x1p16F;
constexpr float kOverflows = 0x1p21F;

class Fp16Training : public testing::Test {
 protected:
  ModelRuntimeOptions options_of(std::string_view family, DType type) const {
    ModelConfig model = tiny_model(family, family == "gpt2", true);
    model = with_shape(model, {.layers = 2});
    ModelRuntimeOptions options = tiny_options(model, type);
    options.batch = {1, 12};
    options.placement.micro_batches = 3;
    options.threads = 1;
    options.nvme.directories = {{directory_.path(), std::nullopt}};
    return options;
  }

  ModelRuntimeOptions options(std::string_view family = "llama") const {
    ModelRuntimeOptions options = options_of(family, DType::kF16);
    options.backend = &backend_;
    all_on(options, false, Tier::kDevice);
    return options;
  }

  // Returns options with which a run overflows, lowers the scale, raises it, and overflows again.
  ModelRuntimeOptions restless(std::string_view family = "llama") const {
    ModelRuntimeOptions restless = options(family);
    restless.optimizer.loss_scale = {.initial = kOverflows / 2, .window = 2};
    return restless;
  }

  TemporaryDirectory directory_;
  FakeGpuBackend backend_{{.has_shared_kernels = true}};
};

TEST_F(Fp16Training, LearnsWhatFp32Learns) {
  constexpr std::int64_t kLong = 20;
  const auto mean = [](std::span<const double> losses) {
    return std::accumulate(losses.begin(), losses.end(), 0.0) / static_cast<double>(losses.size());
  };
  for (const std::string_view family : {"llama", "gpt2"}) {
    ModelRuntimeOptions scaled = options(family);
    scaled.optimizer.loss_scale.initial = kFits;
    const Curve curve = train_tiny(scaled, kLong).curve;
    const Curve exact = train_tiny(options_of(family, DType::kF32), kLong).curve;
    const std::span<const double> losses(curve.losses);
    EXPECT_LT(mean(losses.last(5)), mean(losses.first(5)) - 0.1);
    // The bound of docs/numerics.md, with the unit roundoff of fp16.
    for (std::size_t i = 0; i < exact.losses.size(); ++i) {
      const double bound = 4 * std::sqrt(static_cast<double>(i + 1)) * 0x1p-11;
      EXPECT_NEAR(curve.losses[i], exact.losses[i], bound * exact.losses[i]) << i;
    }
    EXPECT_NEAR(curve.norms.front(), exact.norms.front(), 0x1p-8 * exact.norms.front());
    EXPECT_EQ(curve.loss_scales, std::vector<double>(kLong, kFits));
  }
}

// Every gradient is multiplied and divided by a power of two. As long as nothing overflows or
// becomes denormal, the update does not see the scale.
TEST_F(Fp16Training, TheScaleDoesNotShowInLossesAndNorms) {
  ModelRuntimeOptions large = options();
  large.optimizer.loss_scale.initial = kFits;
  ModelRuntimeOptions small = options();
  small.optimizer.loss_scale.initial = kFits / 2;
  const Curve a = train_tiny(large, 1).curve;
  const Curve b = train_tiny(small, 1).curve;
  EXPECT_EQ(a.losses, b.losses);
  EXPECT_NEAR(a.norms[0], b.norms[0], 0x1p-11 * b.norms[0]);  // denormals are rounded otherwise
}

TEST_F(Fp16Training, TheScaleDoesNotShowInLossesOfRouters) {
  const auto first_step = [this](double coefficient, float scale) {
    ModelRuntimeOptions routed = options("mixtral");
    routed.model.experts.balance_coefficient = coefficient;
    routed.model.experts.z_coefficient = coefficient;
    routed.optimizer.loss_scale.initial = scale;
    return train_tiny(routed, 1).curve;
  };
  const Curve large = first_step(1, kFits / 16);
  const Curve small = first_step(1, kFits / 32);
  EXPECT_EQ(large.losses, small.losses);
  EXPECT_EQ(large.router, small.router);
  EXPECT_NEAR(large.norms[0], small.norms[0], 0x1p-11 * small.norms[0]);
  const double without = first_step(0, kFits / 16).norms[0];
  EXPECT_GT(std::abs(large.norms[0] - without), 0x1p-6 * without);
}

TEST_F(Fp16Training, TheScaleGoesAsItsRulesSay) {
  const ModelRuntimeOptions options = restless();
  const Curve curve = train_tiny(options, 9).curve;
  const LossScaleOptions& rules = options.optimizer.loss_scale;
  LossScaleState state = initial_loss_scale(rules);
  bool fell = false;
  bool grew = false;
  for (std::size_t i = 0; i < curve.skipped.size(); ++i) {
    EXPECT_EQ(curve.loss_scales[i], state.scale) << i;
    EXPECT_TRUE(std::isfinite(curve.losses[i])) << i;
    EXPECT_EQ(curve.skipped[i], std::isinf(curve.norms[i])) << i;
    const LossScaleState next =
        curve.skipped[i] ? after_overflow(rules, state) : after_good_step(rules, state);
    fell = fell || next.scale < state.scale;
    grew = grew || next.scale > state.scale;
    state = next;
  }
  EXPECT_TRUE(curve.skipped.front());
  EXPECT_TRUE(fell);
  EXPECT_TRUE(grew);
}

TEST_F(Fp16Training, PlacementsAndOrdersDoNotChangeBits) {
  constexpr std::int64_t kSteps = 6;
  const TrainedRun expected = train_tiny(restless(), kSteps);
  const auto expect_equal = [&](const std::function<void(ModelRuntimeOptions&)>& set) {
    ModelRuntimeOptions options = restless();
    set(options);
    const TrainedRun run = train_tiny(options, kSteps);
    EXPECT_EQ(run.curve, expected.curve);
    EXPECT_EQ(run.evaluation, expected.evaluation);
  };
  for (const Tier tier : {Tier::kHost, Tier::kNvme}) {
    SCOPED_TRACE(name_of(tier));
    expect_equal([tier](ModelRuntimeOptions& options) { all_on(options, false, tier); });
  }
  for (const StateClassInfo& info : kStateClasses) {
    expect_equal([&info](ModelRuntimeOptions& options) {
      options.placement.homes[info.state] = Tier::kHost;
    });
  }
  expect_equal([](ModelRuntimeOptions& options) {
    options.placement.order = MicroBatchOrder::kLayerMajor;
    options.placement.recompute = true;
  });
  expect_equal([](ModelRuntimeOptions& options) { options.optimizer.splits_bf16_masters = false; });
}

// No update may run ahead of the norm, which says whether the step is skipped.
TEST_F(Fp16Training, UpdatesWaitForTheNormAlsoWithoutClipping) {
  ModelRuntimeOptions clipped = restless();
  clipped.optimizer.max_grad_norm = 1e30;
  ModelRuntimeOptions unclipped = restless();
  unclipped.optimizer.max_grad_norm = 0;
  EXPECT_TRUE(plan_model(unclipped).training.policy.updates_wait_for_norm);
  const TrainedRun run = train_tiny(unclipped, 4);
  EXPECT_EQ(run.curve, train_tiny(clipped, 4).curve);
  EXPECT_TRUE(run.curve.skipped.front());
  EXPECT_FALSE(run.curve.skipped.back());
}

TEST_F(Fp16Training, ASkippedStepLeavesTheStateAsItIs) {
  for (const Tier tier : {Tier::kDevice, Tier::kHost, Tier::kNvme}) {
    for (const SlotForm moments : {SlotForm::kFp32, SlotForm::kBf16, SlotForm::kInt8}) {
      SCOPED_TRACE(std::string(name_of(tier)) + " " + std::to_string(static_cast<int>(moments)));
      ModelRuntimeOptions options = this->options();
      all_on(options, false, tier);
      options.optimizer.slot_form = moments;
      options.optimizer.loss_scale = {.initial = 4 * kFits, .window = 1, .hysteresis = 1};
      const TierPlan plan = plan_model(options);
      SilentLog log;
      ModelRuntime engine(options, plan, log);
      engine.fill_state(RandomState(1234));
      TrainedRun run;
      std::int64_t step = 0;
      do {  // until a scale is too large, so that there are moments to be spoilt
        ++step;
        const SnapshotState before(engine);
        const double evaluation = engine.evaluate(batch_of_step(options, 1));
        train_steps(engine, options, step, step, run);
        const bool is_same = SnapshotState(engine) == before &&
                             engine.evaluate(batch_of_step(options, 1)) == evaluation;
        EXPECT_EQ(is_same, run.curve.skipped.back()) << step;
      } while (!run.curve.skipped.back() && step < 9);
      EXPECT_GT(step, 1);
      EXPECT_TRUE(run.curve.skipped.back());
    }
  }
}

// The test includes the step after the skipped one, because that step counts updates and not steps.
TEST_F(Fp16Training, ASkippedStepIsAsIfItHadNotBeen) {
  const ModelRuntimeOptions options = restless();
  const TierPlan plan = plan_model(options);
  SilentLog log;
  const auto state_after = [&](std::int64_t first, float scale, std::int64_t skipped) {
    ModelRuntime engine(options, plan, log);
    engine.fill_state(RandomState(1234));
    engine.set_loss_scale({.scale = scale, .overflows_left = 1, .skipped_steps = skipped});
    TrainedRun run;
    train_steps(engine, options, first, 3, run);
    EXPECT_EQ(run.curve.skipped.front(), scale == kOverflows);
    EXPECT_FALSE(run.curve.skipped.back());
    return SnapshotState(engine);
  };
  EXPECT_EQ(state_after(1, kOverflows, 0), state_after(3, kOverflows / 4, 2));
}

TEST_F(Fp16Training, GoesOnInMidWindowWithTheSameBits) {
  constexpr std::int64_t kLong = 8;
  ModelRuntimeOptions plain = restless();
  plain.optimizer.loss_scale.window = 3;
  ModelRuntimeOptions second = plain;
  all_on(second, false, Tier::kNvme);
  const Curve whole = train_tiny(plain, kLong).curve;
  const TierPlan first_plan = plan_model(plain);
  const TierPlan second_plan = plan_model(second);
  SilentLog log;
  for (std::int64_t stop = 1; stop < kLong; stop += 2) {
    TrainedRun run;
    ModelRuntime first(plain, first_plan, log);
    first.fill_state(RandomState(1234));
    train_steps(first, plain, 1, stop, run);
    ModelRuntime resumed(second, second_plan, log);
    resumed.fill_state(SnapshotState(first));
    resumed.set_loss_scale(first.loss_scale().value());
    EXPECT_EQ(resumed.loss_scale(), first.loss_scale());
    train_steps(resumed, second, stop + 1, kLong, run);
    EXPECT_EQ(run.curve, whole) << stop;
  }
}

// A run without losses to scale keeps the loss scale and the counts that it has taken over, and
// hands them on.
TEST_F(Fp16Training, AnotherPrecisionKeepsTheScaleAndTheCountOfUpdates) {
  const ModelRuntimeOptions bf16 = options_of("llama", DType::kBF16);
  const TierPlan plan = plan_model(bf16);
  SilentLog log;
  const auto losses_from = [&](std::int64_t first, std::int64_t skipped) {
    ModelRuntime engine(bf16, plan, log);
    engine.fill_state(RandomState(1234));
    EXPECT_EQ(engine.loss_scale(), std::nullopt);
    const LossScaleState taken = {.scale = 512, .good_steps = 7, .skipped_steps = skipped};
    engine.set_loss_scale(taken);
    TrainedRun run;
    const std::vector<std::int32_t> tokens = batch_of_step(bf16, 1);
    for (std::int64_t step = first; step < first + 3; ++step) {
      engine.begin_step({step, tokens, 36, 1e-3});
      run.curve.losses.push_back(engine.finish_step().result.loss);
    }
    engine.drain();
    EXPECT_EQ(engine.loss_scale(), taken);
    return run.curve.losses;
  };
  EXPECT_EQ(losses_from(1, 0), losses_from(5, 4));
  EXPECT_NE(losses_from(1, 0), losses_from(5, 0));
}

TEST_F(Fp16Training, AnOverflowAtTheSmallestScaleEndsTheRun) {
  ModelRuntimeOptions options = this->options();
  options.optimizer.loss_scale = {
      .initial = 2 * kOverflows, .minimum = kOverflows, .hysteresis = 2};
  const TierPlan plan = plan_model(options);
  SilentLog log;
  ModelRuntime engine(options, plan, log);
  engine.fill_state(RandomState(1234));
  const std::vector<std::int32_t> tokens = batch_of_step(options, 1);
  for (const std::int64_t step : {1, 2}) {
    engine.begin_step({step, tokens, 36, 1e-3});
    const StepResult result = engine.finish_step().result;
    EXPECT_EQ(result.loss_scale, 2 * kOverflows);
    EXPECT_TRUE(result.was_skipped);
  }
  engine.begin_step({3, tokens, 36, 1e-3});
  TERRACE_EXPECT_THROW_WITH(engine.finish_step(), NotFinite, "the smallest");
}

struct Mesh {
  const char* name;
  MeshShape shape;
};

constexpr Mesh kMeshes[] = {{"dp2", {.data = 2}},
                            {"tp2", {.tensor = 2}},
                            {"pp2", {.pipeline = 2}},
                            {"dp2_tp2", {.data = 2, .tensor = 2}}};

class Fp16Ranks : public Fp16Training, public testing::WithParamInterface<Mesh> {
 protected:
  ModelRuntimeOptions rank_options() const {
    ModelConfig model = tiny_model("gpt2", true, false);
    model = with_shape(model, {.layers = 2});
    ModelRuntimeOptions options = tiny_options(model, DType::kF16);
    options.batch = {1, 12};
    options.placement.micro_batches = 2;
    options.chunk_elements = 8 * kBlockElements;
    options.backend = &backend_;
    options.nvme.directories = {{directory_.path(), std::nullopt}};
    options.optimizer.loss_scale = {.initial = 2 * kOverflows, .window = 2, .hysteresis = 1};
    all_on(options, false, Tier::kDevice);
    return options;
  }
};

TEST_P(Fp16Ranks, SkipTheSameStepsWithTheSameScale) {
  const MeshShape& shape = GetParam().shape;
  const RankedRun expected = train_ranks(rank_options(), shape, 0);
  for (const Curve& curve : expected.curves) EXPECT_EQ(curve, expected.curves.front());
  const Curve& curve = expected.curves.front();
  EXPECT_TRUE(curve.skipped.front());
  EXPECT_FALSE(curve.skipped.back());
  EXPECT_LT(curve.loss_scales.back(), curve.loss_scales.front());
  if (shape.data == 1) return;
  const auto expect_equal = [&](std::int32_t stage, Tier tier) {
    ModelRuntimeOptions options = rank_options();
    all_on(options, false, tier);
    const RankedRun run = train_ranks(options, shape, stage);
    EXPECT_EQ(run.curves, expected.curves) << stage;
    EXPECT_EQ(run.state, expected.state) << stage;
    EXPECT_EQ(run.evaluations, expected.evaluations) << stage;
  };
  expect_equal(1, Tier::kHost);
  expect_equal(3, Tier::kDevice);
}

INSTANTIATE_TEST_SUITE_P(Meshes, Fp16Ranks, testing::ValuesIn(kMeshes),
                         [](const auto& mesh) { return std::string(mesh.param.name); });

}  // namespace
}  // namespace terrace
