#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <optional>

#include "memory/host/host_limits.h"
#include "parallel/thread_communicator.h"
#include "runtime/train/device_rates.h"
#include "runtime/train/op_times.h"
#include "runtime/train/step_prediction.h"
#include "tests/runtime/engine/engine_fixture.h"
#include "tests/runtime/engine/fake_gpu.h"
#include "tests/runtime/train/timed_ops.h"

// The prediction of a step on a device whose memory the host cannot touch.
namespace terrace {
namespace {

using test::FakeGpuBackend;

constexpr std::size_t kDeviceBytes = 256 * kMiB;

class FakeGpuPrediction : public testing::Test {
 protected:
  ModelRuntimeOptions options(Tier tier) const {
    ModelRuntimeOptions options = tiny_options(tiny_model("llama", true, false), DType::kBF16);
    options.backend = &backend_;
    options.placement.unified = false;
    options.placement.homes.fill(tier);
    options.budgets.at(static_cast<std::size_t>(Tier::kDevice)) = kDeviceBytes;
    return options;
  }

  // Expects that every op gets a time, and that the memory for that is given back.
  void expect_timed(const ModelRuntimeOptions& options) const {
    const std::unique_ptr<ComputeDevice> device = options.backend->make(kDeviceBytes);
    const TierPlan plan = plan_model(options);
    expect_all_timed({.options = options, .plan = plan, .device = device.get()});
    EXPECT_EQ(device->device().free_bytes(), kDeviceBytes);
  }

  std::optional<StepPrediction> predict(const ModelRuntimeOptions& options,
                                        const RankGroup& ranks) const {
    MachineShare machine;
    machine.limits = read_host_limits();
    return predict_step({options, plan_model(options), machine, ranks}, 10);
  }

  FakeGpuBackend backend_;
};

TEST_F(FakeGpuPrediction, TimesEveryOp) {
  ModelRuntimeOptions options = this->options(Tier::kDevice);
  expect_timed(options);
  options.placement.recompute = true;
  options.batch.has_documents = true;
  expect_timed(options);
}

TEST_F(FakeGpuPrediction, TimesOpsOfBothTiers) {
  ModelRuntimeOptions options = this->options(Tier::kHost);
  for (const double share : {0.0, 0.5, 1.0}) {
    SCOPED_TRACE(share);
    options.placement.streamed_updates = share;
    expect_timed(options);
  }
}

TEST_F(FakeGpuPrediction, TimesOpsOfAdaptersAndQuantizedMatrices) {
  ModelRuntimeOptions options = this->options(Tier::kDevice);
  add_dropping_adapter(options);
  options.base_quantization = QuantizedForm::kNf4;
  expect_timed(options);
}

TEST_F(FakeGpuPrediction, TimesStepsThatScaleTheLoss) {
  const FakeGpuBackend shared({.has_shared_kernels = true});
  ModelRuntimeOptions options = this->options(Tier::kDevice);
  options.backend = &shared;
  options.compute_type = DType::kF16;
  expect_timed(options);
  options.batch.has_documents = true;
  expect_timed(options);
}

TEST_F(FakeGpuPrediction, LeavesOutOpsThatNeedMoreDeviceMemory) {
  const ModelRuntimeOptions options = this->options(Tier::kDevice);
  const TierPlan plan = plan_model(options);
  const std::unique_ptr<ComputeDevice> device = backend_.make(64 * kKiB);
  MachineProfile profile;
  EXPECT_FALSE(measure_ops({options, plan, kNoTimeLimit, SIZE_MAX, device.get()}, profile));
}

TEST_F(FakeGpuPrediction, CopiesHaveRatesOfTheirOwn) {
  const std::unique_ptr<ComputeDevice> device = backend_.make(2 * kMiB);
  MachineProfile profile;
  profile.copy_cores = 1;
  measure_device_copies(*device, options(Tier::kDevice), profile);
  EXPECT_GT(profile.upload_bytes_per_s, 1e6);
  EXPECT_GT(profile.download_bytes_per_s, 1e6);
  EXPECT_GT(profile.compute_bytes_per_s, 1e6);
  EXPECT_EQ(profile.copy_cores, 0);
  EXPECT_EQ(device->device().free_bytes(), 2 * kMiB);
}

// A failure of the device is told, like one in a step.
TEST_F(FakeGpuPrediction, FailsWithTheDevice) {
  const FakeGpuBackend failing({.failing_call = 40});
  ModelRuntimeOptions options = this->options(Tier::kDevice);
  options.backend = &failing;
  EXPECT_THROW(predict(options, RankGroup(nullptr, {})), DeviceError);
}

TEST_F(FakeGpuPrediction, LeavesTheStepsAsTheyAre) {
  const ModelRuntimeOptions options = this->options(Tier::kHost);
  const TrainedRun expected = train_tiny(options, 3);
  const std::optional<StepPrediction> prediction = predict(options, RankGroup(nullptr, {}));
  ASSERT_TRUE(prediction.has_value());
  EXPECT_TRUE(prediction->ops_are_measured);
  EXPECT_GT(prediction->step_s, 0);
  EXPECT_GT(prediction->flops_per_s, 0);
  EXPECT_GT(prediction->upload_bytes_per_s, 0);
  const TrainedRun run = train_tiny(options, 3);
  EXPECT_EQ(run.curve, expected.curve);
  EXPECT_EQ(run.evaluation, expected.evaluation);
}

TEST_F(FakeGpuPrediction, IsNotMadeForSeveralRanks) {
  // As in a dry run, one rank stands for both.
  const auto world = make_thread_communicators(1, "world", {});
  ModelRuntimeOptions options = this->options(Tier::kDevice);
  options.ranks.shape.data = 2;
  EXPECT_FALSE(predict(options, RankGroup(world[0].get(), {.data = 2}, 2)).has_value());
}

TEST_F(FakeGpuPrediction, IsNotMadeWhereTheDeviceHasNoMemoryFree) {
  const ModelRuntimeOptions options = this->options(Tier::kDevice);
  const TierPlan plan = plan_model(options);
  MachineShare machine;
  machine.limits = read_host_limits();
  machine.gpu = GpuChoice{.capacity_bytes = 4096};
  EXPECT_FALSE(predict_step({options, plan, machine, RankGroup(nullptr, {})}, 10).has_value());
}

}  // namespace
}  // namespace terrace
