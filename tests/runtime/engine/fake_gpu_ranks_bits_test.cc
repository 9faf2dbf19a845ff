#include <gtest/gtest.h>

#include <optional>
#include <string>

#include "tests/runtime/engine/device_ranks_fixture.h"
#include "tests/runtime/engine/fake_gpu.h"

// Ranks with a GPU each, as far as that can be tested without one: they train as the same mesh on
// the CPU device does, to the last bit.
namespace terrace {
namespace {

using test::FakeGpuBackend;

class FakeGpuRanksBits : public testing::TestWithParam<RankMesh> {
 protected:
  RankedRun train(const ModelRuntimeOptions& options) const {
    return train_mesh(options, GetParam());
  }
  bool has_stages() const { return GetParam().shape.pipeline > 1; }

  FakeGpuBackend backend_;
};

TEST_P(FakeGpuRanksBits, HaveTheBitsOfTheCpuDevice) {
  for (const std::string_view family : {"llama", "gpt2"}) {
    const ModelRuntimeOptions plain = cpu_options(family);
    const RankedRun expected = train(plain);
    for (const Tier optimizer : {Tier::kDevice, Tier::kHost}) {
      SCOPED_TRACE(name_of(optimizer));
      expect_equal_runs(train(gpu_options(plain, backend_, Tier::kDevice, optimizer)), expected);
    }
    expect_equal_runs(train(gpu_options(plain, backend_, Tier::kHost, Tier::kHost)), expected);
  }
}

// Gradients are rounded to bf16 before ranks add them.
TEST_P(FakeGpuRanksBits, WithNarrowGradients) {
  ModelRuntimeOptions plain = cpu_options("llama");
  plain.gradient_type = DType::kBF16;
  const RankedRun expected = train(plain);
  expect_equal_runs(train(gpu_options(plain, backend_, Tier::kDevice, Tier::kDevice)), expected);
  expect_equal_runs(train(gpu_options(plain, backend_, Tier::kHost, Tier::kHost)), expected);
}

TEST_P(FakeGpuRanksBits, WithUpdatesDividedBetweenHostAndDevice) {
  for (const double max_grad_norm : {1.6, 0.0}) {
    ModelRuntimeOptions plain = cpu_options("gpt2");
    plain.optimizer.max_grad_norm = max_grad_norm;
    const RankedRun expected = train(plain);
    for (const Tier rest : {Tier::kDevice, Tier::kHost}) {
      ModelRuntimeOptions options = gpu_options(plain, backend_, rest, Tier::kHost);
      options.placement.streamed_updates = rest == Tier::kDevice ? 0.5 : 1.0;
      expect_equal_runs(train(options), expected);
    }
  }
}

TEST_P(FakeGpuRanksBits, WithEveryStateOnTheDriveAndTheStepNotClipped) {
  const TemporaryDirectory drive;
  ModelRuntimeOptions plain = cpu_options("llama");
  plain.optimizer.max_grad_norm = 0;
  ModelRuntimeOptions options = gpu_options(plain, backend_, Tier::kNvme, Tier::kNvme);
  options.nvme.directories = {{drive.path(), std::nullopt}};
  const RankedRun expected = train(plain);
  for (const double share : {0.0, 0.5}) {
    options.placement.streamed_updates = share;
    expect_equal_runs(train(options), expected);
  }
}

TEST_P(FakeGpuRanksBits, WithTheOtherOrderAndGradientsOfTwoBytes) {
  ModelRuntimeOptions plain = cpu_options("llama");
  plain.gradient_type = DType::kBF16;
  if (!has_stages()) plain.placement.order = MicroBatchOrder::kLayerMajor;
  plain.placement.recompute = true;
  const RankedRun expected = train(plain);
  expect_equal_runs(train(gpu_options(plain, backend_, Tier::kHost, Tier::kDevice)), expected);
  expect_equal_runs(train(gpu_options(plain, backend_, Tier::kDevice, Tier::kHost)), expected);
}

// Codes are made on the device for what is there, and on the host for gradients that are summed
// there.
TEST_P(FakeGpuRanksBits, WithCodes) {
  ModelRuntimeOptions plain = cpu_options("llama");
  if (!add_codes(plain, GetParam())) return;
  const RankedRun expected = train(plain);
  for (const Tier errors : {Tier::kDevice, Tier::kHost}) {
    for (const Tier rest : {Tier::kDevice, Tier::kHost}) {
      ModelRuntimeOptions options = gpu_options(plain, backend_, rest, Tier::kHost);
      options.placement.homes[StateClass::kErrors] = errors;
      expect_equal_runs(train(options), expected);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Meshes, FakeGpuRanksBits, testing::ValuesIn(kRankMeshes),
                         [](const auto& mesh) { return std::string(mesh.param.name); });

// The hidden states are of more ranks than a communicator of GPUs adds in bf16.
TEST(FakeGpuTensorRanks, OfFourHaveTheBitsOfTheCpuDevice) {
  const FakeGpuBackend backend;
  ModelRuntimeOptions plain = cpu_options("llama");
  plain.model.key_value_heads = plain.model.heads;
  for (const bool sequence_parallel : {true, false}) {
    plain.sequence_parallel = sequence_parallel;
    const RankedRun expected = train_ranks(plain, {.tensor = 4}, 0);
    for (const Tier tier : {Tier::kDevice, Tier::kHost}) {
      expect_equal_runs(train_ranks(gpu_options(plain, backend, tier, tier), {.tensor = 4}, 0),
                        expected);
    }
  }
}

}  // namespace
}  // namespace terrace
