#include <gtest/gtest.h>

#include <chrono>
#include <memory>
#include <optional>
#include <string>

#include "memory/cuda/cuda_device.h"
#include "memory/host/host_limits.h"
#include "runtime/train/op_times.h"
#include "runtime/train/step_prediction.h"
#include "tests/gpu/gpu_presence.h"
#include "tests/runtime/engine/engine_fixture.h"
#include "tests/runtime/train/timed_ops.h"

// The prediction of a step on the first GPU, beside the step.
namespace terrace {
namespace {

// A model with the sizes of gpt2-124m.
ModelConfig gpt2_sizes() {
  SmallModel sizes;
  sizes.layers = 12;
  sizes.width = 768;
  sizes.heads = 12;
  sizes.intermediate = 4 * sizes.width;
  sizes.vocabulary = 50257;
  sizes.positions = 1024;
  sizes.tied = true;
  return small_model("gpt2", sizes);
}

class GpuPrediction : public testing::TestWithParam<Tier> {
 protected:
  void SetUp() override {
    if (!test::has_cuda_driver()) GTEST_SKIP() << "not run: there is no CUDA driver";
    backend_ = make_cuda_backend(0);
    machine_.limits = read_host_limits();
    machine_.threads.usable_cpus = machine_.limits.usable_cpus();
    machine_.gpu = GpuChoice{.ordinal = 0, .capacity_bytes = cuda_capacity_bytes(0)};
  }

  // Returns options for steps whose optimizer lives in the tier, and all else on the GPU.
  ModelRuntimeOptions options(const ModelConfig& model) const {
    ModelRuntimeOptions options = tiny_options(model, DType::kBF16);
    options.backend = backend_.get();
    options.placement.unified = false;
    options.placement.homes.fill(Tier::kDevice);
    options.placement.homes[StateClass::kOptimizer] = GetParam();
    options.threads = options.update_threads = machine_.limits.usable_cpus();
    return options;
  }

  std::unique_ptr<ComputeBackend> backend_;
  MachineShare machine_;
};

// Returns the seconds of a step once the first ones are done.
double measured_step_s(const ModelRuntimeOptions& options, const TierPlan& plan) {
  constexpr std::int64_t kFirst = 4;
  constexpr std::int64_t kSteps = 12;
  SilentLog log;
  ModelRuntime engine(options, plan, log);
  engine.fill_state(RandomState(1234));
  TrainedRun run;
  train_steps(engine, options, 1, kFirst, run);
  const auto begin = std::chrono::steady_clock::now();
  train_steps(engine, options, kFirst + 1, kFirst + kSteps, run);
  const std::chrono::duration<double> passed = std::chrono::steady_clock::now() - begin;
  return passed.count() / kSteps;
}

TEST_P(GpuPrediction, IsWithinAFactorOfTwo) {
  ModelRuntimeOptions options = this->options(gpt2_sizes());
  options.batch = {8, 1024};
  options.chunk_elements = ModelRuntimeOptions().chunk_elements;
  options.placement.micro_batches = 2;
  const TierPlan plan = plan_model(options);
  const std::optional<StepPrediction> prediction =
      predict_step({options, plan, machine_, RankGroup(nullptr, {})}, 30);
  ASSERT_TRUE(prediction.has_value());
  EXPECT_TRUE(prediction->ops_are_measured);
  const double measured_s = measured_step_s(options, plan);
  RecordProperty("predicted_s", std::to_string(prediction->step_s));
  RecordProperty("measured_s", std::to_string(measured_s));
  EXPECT_LT(prediction->step_s, 2 * measured_s);
  EXPECT_GT(prediction->step_s, measured_s / 2);
}

// The memory for it is given back, and every op of models with other layers gets a time.
TEST_P(GpuPrediction, TimesEveryOpAndGivesTheMemoryBack) {
  for (const bool has_documents : {false, true}) {
    ModelRuntimeOptions options = this->options(tiny_model("llama", true, has_documents));
    options.batch.has_documents = has_documents;
    const TierPlan plan = plan_model(options);
    const std::unique_ptr<ComputeDevice> device = backend_->make(machine_.gpu->capacity_bytes);
    const std::size_t before = device->device().free_bytes();
    expect_all_timed({.options = options, .plan = plan, .device = device.get()});
    EXPECT_EQ(device->device().free_bytes(), before);
  }
}

INSTANTIATE_TEST_SUITE_P(OptimizerIn, GpuPrediction, testing::Values(Tier::kDevice, Tier::kHost),
                         [](const auto& tier) { return std::string(name_of(tier.param)); });

}  // namespace
}  // namespace terrace
