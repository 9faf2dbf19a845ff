#include "tests/runtime/engine/fake_gpu.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <string>
#include <vector>

#include "base/error.h"
#include "tests/conformance/device_conformance.h"
#include "tests/runtime/engine/engine_fixture.h"
#include "tests/runtime/engine/fake_gpu_kernels.h"

// The engine on a device whose memory the host cannot touch and whose tasks run at once: what
// driving a GPU asks of the engine, as far as that can be tested without one.
namespace terrace {
namespace {

using test::FakeGpuBackend;

INSTANTIATE_TEST_SUITE_P(FakeGpu, DeviceConformanceTest,
                         testing::Values(DeviceFactory{"fake_gpu", &test::make_fake_gpu, 0}),
                         [](const auto& device) { return device.param.name; });

TEST(FakeGpuDeathTest, ItsMemoryCannotBeTouched) {
  const auto device = test::make_fake_gpu(4096);
  const auto memory = device->allocate(4096);
  EXPECT_DEATH(memory->bytes()[0] = std::byte{1}, "");
}

struct Shape {
  const char* name;
  std::string_view family;
  bool tied;
  DType type;
};

constexpr Shape kShapes[] = {{"gpt2_bf16", "gpt2", true, DType::kBF16},
                             {"llama_bf16", "llama", false, DType::kBF16},
                             {"llama_fp32", "llama", true, DType::kF32},
                             {"mixtral_bf16", "mixtral", false, DType::kBF16},
                             {"gpt_oss_bf16", "gpt_oss", false, DType::kBF16},
                             {"qwen2_moe_bf16", "qwen2_moe", false, DType::kBF16},
                             {"glm4_moe_bf16", "glm4_moe", false, DType::kBF16}};

class FakeGpuEngine : public testing::TestWithParam<Shape> {
 protected:
  static constexpr std::int64_t kSteps = 4;

  // Returns options for the CPU, where device and host are one tier.
  ModelRuntimeOptions plain_options() const {
    ModelConfig model = tiny_model(GetParam().family, GetParam().tied, true);
    model = with_shape(model, {.layers = 2});
    ModelRuntimeOptions options = tiny_options(model, GetParam().type);
    options.batch = {1, 12};
    options.placement.micro_batches = 3;
    options.nvme.directories = {{directory_.path(), std::nullopt}};
    return options;
  }

  // Returns options for the fake GPU, with all state at home there.
  ModelRuntimeOptions gpu_options() const {
    ModelRuntimeOptions options = plain_options();
    options.backend = &backend_;
    options.placement.unified = false;
    set_homes(options, Tier::kDevice);
    return options;
  }

  static void set_homes(ModelRuntimeOptions& options, Tier tier) {
    PlacementRequest& placement = options.placement;
    placement.homes.fill(tier);
    placement.has_nvme = tier == Tier::kNvme;
  }

  // Expects the bits of the CPU device with the same switches, except the placement.
  void expect_equal(const std::function<void(ModelRuntimeOptions&)>& set) const {
    ModelRuntimeOptions plain = plain_options();
    ModelRuntimeOptions options = gpu_options();
    const PlacementRequest before = plain.placement;
    set(plain);
    set(options);
    plain.placement = before;
    plain.placement.order = options.placement.order;
    const TrainedRun expected = train_tiny(plain, kSteps);
    const TrainedRun run = train_tiny(options, kSteps);
    EXPECT_EQ(run.curve, expected.curve);
    EXPECT_EQ(run.evaluation, expected.evaluation);
    EXPECT_GT(run.ledger[Tier::kDevice].peak_bytes, 0U);
  }

  // Puts all state on the host and this share of the updates on the device, and expects every
  // planted failure to end the run.
  void expect_failures_end_the_run(double share) const {
    int named = 0;
    int failures = 0;
    for (int failing_call = 1;; failing_call += 1 + failing_call / 3) {
      const FakeGpuBackend failing({.failing_call = failing_call});
      ModelRuntimeOptions options = gpu_options();
      options.backend = &failing;
      set_homes(options, Tier::kHost);
      options.placement.streamed_updates = share;
      try {
        train_tiny(options, 3);
        break;
      } catch (const DeviceError& error) {
        ++failures;
        const std::string text = error.what();
        EXPECT_NE(text.find("planted"), text.npos) << text;
        if (text.find("forward") != text.npos || text.find("upload") != text.npos) ++named;
      }
    }
    EXPECT_GT(failures, 15);
    EXPECT_GT(named, 0);
  }

  TemporaryDirectory directory_;
  FakeGpuBackend backend_;
};

TEST_P(FakeGpuEngine, HasTheBitsOfTheCpuDevice) {
  expect_equal([](ModelRuntimeOptions&) {});
}

// Covers training and evaluation.
TEST_P(FakeGpuEngine, AttentionIsPreparedBeforeTheFirstStep) {
  test::forget_prepared_attention();
  train_tiny(gpu_options(), kSteps);
  EXPECT_EQ(test::unprepared_attention_calls(), 0);
  test::forget_prepared_attention();
  ModelRuntimeOptions recomputed = gpu_options();
  recomputed.placement.recompute = true;
  train_tiny(recomputed, kSteps);
  EXPECT_EQ(test::unprepared_attention_calls(), 0);
}

TEST_P(FakeGpuEngine, WithEveryStateAway) {
  for (const Tier tier : {Tier::kHost, Tier::kNvme}) {
    SCOPED_TRACE(name_of(tier));
    expect_equal([tier](ModelRuntimeOptions& options) { set_homes(options, tier); });
  }
}

TEST_P(FakeGpuEngine, WithOneStateAway) {
  for (const StateClassInfo& info : kStateClasses) {
    expect_equal([&info](ModelRuntimeOptions& options) {
      options.placement.homes[info.state] = Tier::kHost;
    });
  }
}

TEST_P(FakeGpuEngine, WithOtherOrdersAndTypes) {
  expect_equal([](ModelRuntimeOptions& options) {
    options.placement.order = MicroBatchOrder::kLayerMajor;
    options.placement.recompute = true;
  });
  expect_equal([](ModelRuntimeOptions& options) { options.gradient_type = DType::kBF16; });
  expect_equal([](ModelRuntimeOptions& options) {
    options.optimizer.slot_form = SlotForm::kInt8;
    options.optimizer.max_grad_norm = 0;
  });
}

TEST_P(FakeGpuEngine, WithExpertsInGroups) {
  if (plain_options().model.experts.count == 0) return;
  for (const std::int64_t experts : {1, 2}) {
    for (const bool layer_major : {false, true}) {
      expect_equal([=](ModelRuntimeOptions& options) {
        options.experts_per_group = experts;
        options.placement.recompute = layer_major;
        if (layer_major) options.placement.order = MicroBatchOrder::kLayerMajor;
      });
      expect_equal([=](ModelRuntimeOptions& options) {
        add_dropping_adapter(options);
        options.base_quantization = layer_major ? QuantizedForm::kNf4 : QuantizedForm::kInt8;
        options.experts_per_group = experts;
        options.placement.recompute = layer_major;
      });
    }
  }
}

TEST_P(FakeGpuEngine, WithSeveralDocumentsInASequence) {
  test::forget_prepared_attention();
  for (const bool recompute : {false, true}) {
    expect_equal([recompute](ModelRuntimeOptions& options) {
      options.batch.has_documents = true;
      options.placement.recompute = recompute;
    });
  }
  EXPECT_EQ(test::unprepared_attention_calls(), 0);
}

TEST_P(FakeGpuEngine, WithAdaptersThatHaveDropout) {
  for (const bool recompute : {false, true}) {
    expect_equal([recompute](ModelRuntimeOptions& options) {
      add_dropping_adapter(options);
      options.batch.has_documents = recompute;
      options.placement.recompute = recompute;
    });
  }
}

// Returns a switch that puts the state in these tiers and runs this share of its updates on the
// device.
std::function<void(ModelRuntimeOptions&)> streamed(Tier parameters, Tier optimizer, double share) {
  return [=](ModelRuntimeOptions& options) {
    options.placement.homes[StateClass::kParameters] =
        options.placement.homes[StateClass::kGradients] = parameters;
    options.placement.homes[StateClass::kOptimizer] = optimizer;
    options.placement.has_nvme = true;
    options.placement.streamed_updates = share;
  };
}

TEST_P(FakeGpuEngine, WithUpdatesDividedBetweenHostAndDevice) {
  for (const Tier optimizer : {Tier::kHost, Tier::kNvme}) {
    for (const Tier rest : {Tier::kDevice, optimizer}) {
      for (const double share : {0.0, 0.4, 1.0}) {
        SCOPED_TRACE(share);
        expect_equal(streamed(rest, optimizer, share));
      }
    }
  }
}

TEST_P(FakeGpuEngine, WithUpdatesDividedAndEveryFormOfState) {
  for (const double share : {0.4, 1.0}) {
    for (const SlotForm moments : {SlotForm::kFp32, SlotForm::kBf16, SlotForm::kInt8}) {
      for (const bool splits : {true, false}) {
        expect_equal([=](ModelRuntimeOptions& options) {
          streamed(Tier::kHost, Tier::kHost, share)(options);
          options.optimizer.slot_form = moments;
          options.optimizer.splits_bf16_masters = splits;
        });
      }
    }
  }
}

TEST_P(FakeGpuEngine, WithUpdatesDividedAndOtherOrders) {
  for (const double share : {0.4, 1.0}) {
    for (const Tier rest : {Tier::kDevice, Tier::kHost}) {
      const auto set = streamed(rest, Tier::kHost, share);
      expect_equal([=](ModelRuntimeOptions& options) {
        set(options);
        options.optimizer.max_grad_norm = 0;
      });
      expect_equal([=](ModelRuntimeOptions& options) {
        set(options);
        options.placement.order = MicroBatchOrder::kLayerMajor;
        options.placement.lookahead = 0;
      });
      expect_equal([=](ModelRuntimeOptions& options) {
        set(options);
        options.placement.order = MicroBatchOrder::kLayerMajor;
        options.optimizer.max_grad_norm = 0;
        options.gradient_type = DType::kBF16;
      });
    }
  }
}

TEST_P(FakeGpuEngine, StateIsStreamedThroughTheDevice) {
  ModelRuntimeOptions options = gpu_options();
  streamed(Tier::kDevice, Tier::kHost, 0)(options);
  const Program on_host = plan_model(options).training.program;
  streamed(Tier::kDevice, Tier::kHost, 1)(options);
  const TrainedRun run = train_tiny(options, kSteps);
  const Program program = plan_model(options).training.program;
  const double state_bytes = lane_bytes(program, Lane::kUpload, Account::kOptimizerState);
  EXPECT_GT(state_bytes, 0);
  EXPECT_GE(run.traffic.of(Lane::kUpload), kSteps * state_bytes);
  EXPECT_GE(run.traffic.of(Lane::kDownload), kSteps * state_bytes);
  const auto is_update = [](const Op& op) { return op.kind == OpKind::kUpdate; };
  for (const Program* one : {&on_host, &program}) {
    const Lane lane = one == &program ? Lane::kCompute : Lane::kUpdate;
    EXPECT_TRUE(std::ranges::any_of(one->ops, is_update));
    EXPECT_TRUE(std::ranges::all_of(
        one->ops, [&](const Op& op) { return !is_update(op) || op.lane == lane; }));
  }
}

TEST_P(FakeGpuEngine, StateReadsBackWhatItWasFilledWith) {
  const ModelRuntimeOptions options = gpu_options();
  const TierPlan plan = plan_model(options);
  SilentLog log;
  ModelRuntime engine(options, plan, log);
  const RandomState source(99);
  engine.fill_state(source);
  for (const UnitLayout& unit : engine.compute().layout()) {
    for (const StateField field : kStateFields) {
      std::vector<float> expected(static_cast<std::size_t>(unit.padded_elements));
      std::vector<float> got(expected.size());
      source.read(field, unit, 0, expected);
      engine.state().read(field, static_cast<std::int32_t>(unit.index), 0, got);
      EXPECT_EQ(got, expected) << "unit " << unit.index;
    }
  }
}

// Wherever the device fails, the run ends with the device's error, which names an op once ops have
// begun. Nothing waits for ever.
TEST_P(FakeGpuEngine, AFailureEndsTheRun) {
  for (const double share : {0.0, 1.0}) expect_failures_end_the_run(share);
}

// A step's norm decides whether the step is skipped. The head of the next step and the updates in
// every tier learn of the decision; fp16_training_test.cc tests all of it.
TEST(FakeGpuFp16, SkipsAStepAndGoesOn) {
  const FakeGpuBackend backend({.has_shared_kernels = true});
  ModelConfig model = tiny_model("llama", true, true);
  model = with_shape(model, {.layers = 1});
  ModelRuntimeOptions options = tiny_options(model, DType::kF16);
  options.batch = {1, 12};
  options.placement.micro_batches = 1;
  options.placement.unified = false;
  options.backend = &backend;
  options.threads = 1;
  options.optimizer.loss_scale = {.initial = 0x1p32F, .window = 1, .hysteresis = 1};
  for (const Tier optimizer : {Tier::kDevice, Tier::kHost}) {
    options.placement.homes[StateClass::kOptimizer] = optimizer;
    const Curve curve = train_tiny(options, 3).curve;
    EXPECT_EQ(curve.skipped, std::vector<bool>(3, true));
    EXPECT_EQ(curve.loss_scales, (std::vector<double>{0x1p32, 0x1p31, 0x1p30}));
  }
  options.optimizer.loss_scale.initial = 0x1p16F;
  const Curve curve = train_tiny(options, 3).curve;
  EXPECT_EQ(curve.skipped, std::vector<bool>(3, false));
  EXPECT_EQ(curve.loss_scales, (std::vector<double>{0x1p16, 0x1p17, 0x1p18}));
}

// The kernels of GPUs drop what the CPU's drop: in fp32, the losses are near. In fp16 the same
// elements are dropped when activations are recomputed.
TEST(FakeGpuDropout, OfSharedKernelsDropsTheSame) {
  const FakeGpuBackend backend({.has_shared_kernels = true});
  const auto curve_of = [&](DType type, const auto& set) {
    const ModelConfig model = with_shape(tiny_model("llama", true, true), {.layers = 1});
    ModelRuntimeOptions options = tiny_options(model, type);
    options.batch = {.sequences = 2, .positions = 12, .has_documents = true};
    options.placement.micro_batches = 1;
    options.placement.unified = false;
    options.threads = 1;
    options.backend = &backend;
    add_dropping_adapter(options);
    set(options);
    return train_tiny(options, 3).curve;
  };
  const auto nothing = [](ModelRuntimeOptions&) {};
  const auto on_cpu = [](ModelRuntimeOptions& options) {
    options.backend = nullptr;
    options.placement.unified = true;
  };
  const auto recomputed = [](ModelRuntimeOptions& options) { options.placement.recompute = true; };
  const auto seed = [](ModelRuntimeOptions& options) { options.dropout_seed = 6; };
  const Curve exact = curve_of(DType::kF32, nothing);
  const Curve cpu = curve_of(DType::kF32, on_cpu);
  const Curve other = curve_of(DType::kF32, seed);
  for (std::size_t i = 0; i < 3; ++i) {
    EXPECT_NEAR(exact.norms[i], cpu.norms[i], 1e-4 * cpu.norms[i]) << i;
    EXPECT_GT(std::abs(other.norms[i] - cpu.norms[i]), 1e-3 * cpu.norms[i]) << i;
  }
  const Curve half = curve_of(DType::kF16, nothing);
  EXPECT_EQ(curve_of(DType::kF16, recomputed), half);
  EXPECT_NE(curve_of(DType::kF16, seed), half);
  EXPECT_NEAR(half.losses.back(), exact.losses.back(), 1e-2 * exact.losses.back());
}

INSTANTIATE_TEST_SUITE_P(Shapes, FakeGpuEngine, testing::ValuesIn(kShapes),
                         [](const auto& shape) { return std::string(shape.param.name); });

}  // namespace
}  // namespace terrace
