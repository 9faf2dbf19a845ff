#include <gtest/gtest.h>

#include <functional>
#include <optional>
#include <string>

#include "runtime/engine/compute_backend.h"
#include "tests/gpu/gpu_presence.h"
#include "tests/runtime/engine/engine_fixture.h"

// Whole training runs on the first GPU: switches do not change bits there either. Every run must
// give the losses and norms of a run whose state is all on the GPU.
namespace terrace {
namespace {

constexpr std::int64_t kSteps = 20;

struct Shape {
  const char* name;
  std::string_view family;
  bool tied;
  bool odd;
  DType type;
};

constexpr Shape kShapes[] = {{"gpt2_bf16", "gpt2", true, false, DType::kBF16},
                             {"gpt2_odd_bf16", "gpt2", false, true, DType::kBF16},
                             {"llama_bf16", "llama", true, false, DType::kBF16},
                             {"gpt2_fp16", "gpt2", true, false, DType::kF16},
                             {"llama_odd_fp16", "llama", false, true, DType::kF16},
                             {"llama_odd_fp32", "llama", false, true, DType::kF32}};

void set_homes(ModelRuntimeOptions& options, Tier tier) {
  PlacementRequest& placement = options.placement;
  placement.homes.fill(tier);
  placement.has_nvme = tier == Tier::kNvme;
}

class GpuEngine : public testing::TestWithParam<Shape> {
 protected:
  void SetUp() override {
    if (!test::has_cuda_driver()) GTEST_SKIP() << "not run: there is no CUDA driver";
    backend_ = make_cuda_backend(0);
  }

  ModelRuntimeOptions options() const {
    const Shape& shape = GetParam();
    ModelRuntimeOptions options =
        tiny_options(tiny_model(shape.family, shape.tied, shape.odd), shape.type);
    options.backend = backend_.get();
    options.placement.unified = false;
    options.nvme.directories = {{directory_.path(), std::nullopt}};
    // In fp16 the scale falls, and grows again.
    options.optimizer.loss_scale = {.initial = 0x1p20F, .window = 8};
    set_homes(options, Tier::kDevice);
    return options;
  }

  void expect_equal(const TrainedRun& expected,
                    const std::function<void(ModelRuntimeOptions&)>& set) const {
    ModelRuntimeOptions changed = options();
    set(changed);
    const TrainedRun run = train_tiny(changed, kSteps);
    EXPECT_EQ(run.curve, expected.curve);
    EXPECT_EQ(run.evaluation, expected.evaluation);
  }

  TemporaryDirectory directory_;
  std::unique_ptr<ComputeBackend> backend_;
};

TEST_P(GpuEngine, LearnsAndRepeatsItself) {
  const TrainedRun run = train_tiny(options(), kSteps);
  EXPECT_LT(run.curve.losses.back(), run.curve.losses.front() - 0.3);
  expect_equal(run, [](ModelRuntimeOptions&) {});
}

TEST_P(GpuEngine, PlacementsDoNotChangeBits) {
  const TrainedRun expected = train_tiny(options(), kSteps);
  for (const Tier tier : {Tier::kHost, Tier::kNvme}) {
    SCOPED_TRACE(name_of(tier));
    expect_equal(expected, [tier](ModelRuntimeOptions& options) { set_homes(options, tier); });
    for (const StateClassInfo& info : kStateClasses) {
      expect_equal(expected, [tier, &info](ModelRuntimeOptions& options) {
        options.placement.homes[info.state] = tier;
        options.placement.has_nvme = tier == Tier::kNvme;
      });
    }
  }
}

TEST_P(GpuEngine, WhereUpdatesRunDoesNotChangeBits) {
  const TrainedRun expected = train_tiny(options(), kSteps);
  for (const Tier tier : {Tier::kHost, Tier::kNvme}) {
    for (const double share : {0.0, 0.5, 1.0}) {
      SCOPED_TRACE(share);
      expect_equal(expected, [=](ModelRuntimeOptions& options) {
        options.placement.homes[StateClass::kOptimizer] = tier;
        options.placement.has_nvme = tier == Tier::kNvme;
        options.placement.streamed_updates = share;
      });
    }
  }
}

TEST_P(GpuEngine, OrdersDoNotChangeBits) {
  const TrainedRun expected = train_tiny(options(), kSteps);
  expect_equal(expected, [](ModelRuntimeOptions& options) { options.placement.recompute = true; });
  expect_equal(expected, [](ModelRuntimeOptions& options) {
    options.placement.order = MicroBatchOrder::kLayerMajor;
  });
  expect_equal(expected, [](ModelRuntimeOptions& options) {
    set_homes(options, Tier::kHost);
    options.placement.recompute = true;
    options.placement.order = MicroBatchOrder::kLayerMajor;
    options.placement.lookahead = 0;
  });
}

// The same elements of adapters' inputs are dropped in the forward, the recomputation and the
// backward, wherever the state is.
TEST_P(GpuEngine, AdaptersWithDropoutKeepTheirBits) {
  const auto drops = [](ModelRuntimeOptions& options) {
    add_dropping_adapter(options);
    options.batch.has_documents = true;
  };
  ModelRuntimeOptions dropping = options();
  drops(dropping);
  const TrainedRun expected = train_tiny(dropping, kSteps);
  expect_equal(expected, [&](ModelRuntimeOptions& options) {
    drops(options);
    options.placement.recompute = true;
  });
  expect_equal(expected, [&](ModelRuntimeOptions& options) {
    drops(options);
    set_homes(options, Tier::kHost);
    options.placement.order = MicroBatchOrder::kLayerMajor;
  });
  dropping.dropout_seed = 6;
  EXPECT_NE(train_tiny(dropping, kSteps).curve, expected.curve);
}

INSTANTIATE_TEST_SUITE_P(Shapes, GpuEngine, testing::ValuesIn(kShapes),
                         [](const auto& shape) { return std::string(shape.param.name); });

}  // namespace
}  // namespace terrace
