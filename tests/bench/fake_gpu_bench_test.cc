#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/bytes.h"
#include "base/error.h"
#include "bench/bench.h"
#include "bench/bench_device.h"
#include "bench/bench_record.h"
#include "bench/bench_report.h"
#include "bench/device_limits.h"
#include "bench/lane_copies.h"
#include "bench/machine_measure.h"
#include "bench/update_forms.h"
#include "runtime/engine/model_runtime.h"
#include "runtime/plan/step_flops.h"
#include "tests/runtime/engine/fake_gpu.h"

// The benchmarks of a GPU run, as small as possible, on a device that treats the host as a GPU
// does. The times that they measure are not checked: times are no test.
namespace terrace {
namespace {

using nlohmann::json;
using test::FakeGpuBackend;

// Stands for the vendor's copies.
class OtherCopies final : public CopyLoad {
 public:
  OtherCopies(const ComputeBackend& backend, std::string name, std::size_t size_bytes)
      : name_(std::move(name)),
        device_(backend.make(size_bytes)),
        copies_(*device_, size_bytes, {}) {}

  std::string_view name() const override { return name_; }
  CopySeconds run(CopyWays ways) override { return copies_.run(ways); }

 private:
  const std::string name_;
  const std::unique_ptr<ComputeDevice> device_;
  LaneCopies copies_;
};

BenchDevice fake_device() {
  BenchDevice device;
  device.description = "a fake GPU";
  device.backend = std::make_shared<const FakeGpuBackend>();
  device.capacity_bytes = kGiB;
  device.plain_copies = [backend = device.backend](std::size_t size_bytes) {
    std::vector<std::unique_ptr<CopyLoad>> loads;
    for (const char* name : {"one memory", "another memory"}) {
      loads.push_back(std::make_unique<OtherCopies>(*backend, name, size_bytes));
    }
    return loads;
  };
  return device;
}

const Bench& bench_named(std::string_view name) {
  return *std::ranges::find(benches(), name, &Bench::name);
}

std::vector<BenchResult> results_on(const BenchDevice& device, std::string_view name) {
  BenchOptions options;
  options.device = &device;
  options.repetitions = 2;
  options.seconds = 0.01;
  options.small = true;
  SilentLog log;
  BenchRecord record;
  bench_named(name).run(options, record, log);
  EXPECT_FALSE(record.is_cut_short());
  std::vector<BenchResult> results = record.results();
  for (const BenchResult& result : results) {
    EXPECT_EQ(result.value.count(), 2) << result.name;
    EXPECT_EQ(result.limit.count(), 2) << result.name;
    EXPECT_GT(result.value.low(), 0) << result.name;
    EXPECT_GT(result.limit.low(), 0) << result.name;
    EXPECT_FALSE(result.limit_is.empty()) << result.name;
  }
  const json document =
      json::parse(bench_json({.run = {}, .options = options, .results = results}));
  EXPECT_EQ(document.at("device"), "a fake GPU");
  return results;
}

std::vector<std::string> names_of(const std::vector<BenchResult>& results) {
  std::vector<std::string> names;
  for (const BenchResult& result : results) names.push_back(result.name);
  return names;
}

TEST(FakeGpuBench, CopiesHaveTheNamesOfNvbandwidth) {
  const std::vector<BenchResult> results = results_on(fake_device(), "copy");
  EXPECT_THAT(names_of(results),
              testing::ElementsAre("host_to_device_memcpy_ce", "device_to_host_memcpy_ce",
                                   "host_to_device_bidirectional_memcpy_ce",
                                   "device_to_host_bidirectional_memcpy_ce",
                                   "bidirectional_memcpy_ce_sum", "device_local_copy"));
  for (const BenchResult& result : results) {
    EXPECT_TRUE(result.goal.has_value()) << result.name;
    EXPECT_EQ(result.details.size(), 2U) << result.name;
    EXPECT_THAT(result.limit_is, testing::AnyOf("one memory", "another memory"));
  }
}

// A profile of a machine with GPUs has the figures that a plan for one of them needs.
TEST(FakeGpuBench, AProfileHasTheRatesOfTheDevice) {
  using enum MachineFigure;
  const BenchDevice device = fake_device();
  MachineMeasurement measurement;
  measurement.name = "here";
  measurement.device = &device;
  measurement.devices = 2;
  measurement.types = {DType::kBF16, DType::kF32};  // the fake GPU has no products in fp16
  measurement.widest_product = 128;
  SilentLog log;
  const Machine machine = measure_machine(measurement, log);
  EXPECT_EQ(machine.devices, 2);
  EXPECT_THAT(machine.about, testing::StartsWith("2 x a fake GPU; "));
  EXPECT_EQ(machine.value(kDeviceMemoryBytes),
            static_cast<double>(2 * kGiB));  // 1 GiB is kept free
  for (const MachineFigure figure :
       {kBf16FlopsPerS, kFp32FlopsPerS, kUploadBytesPerS, kDownloadBytesPerS,
        kDeviceMemoryBytesPerS, kHostMemoryBytesPerS, kUpdateBytesPerS, kCores}) {
    EXPECT_GT(machine.value_or(figure, 0), 0) << key_of(figure);
  }
  EXPECT_EQ(machine.value(kLinkShare), 1);
  ASSERT_EQ(machine.product_curve.size(), 2U);
  EXPECT_EQ(machine.product_curve[0].flops, 2.0 * 64 * 64 * 64);
  EXPECT_EQ(std::ranges::max(machine.product_curve, {}, &ProductSpeed::share).share, 1);
}

// Copies that say how long they took, and do nothing.
class SaidCopies final : public CopyLoad {
 public:
  SaidCopies(std::string name, CopySeconds seconds) : name_(std::move(name)), seconds_(seconds) {}

  std::string_view name() const override { return name_; }
  CopySeconds run(CopyWays /*ways*/) override { return seconds_; }

 private:
  const std::string name_;
  const CopySeconds seconds_;
};

TEST(FakeGpuBench, TheLimitOfACopyIsTheBestOfEachWay) {
  BenchDevice device = fake_device();
  device.plain_copies = [](std::size_t) {
    std::vector<std::unique_ptr<CopyLoad>> loads;
    loads.push_back(std::make_unique<SaidCopies>("quick up", CopySeconds{1, 4, 2}));
    loads.push_back(std::make_unique<SaidCopies>("quick down", CopySeconds{2, 2, 4}));
    return loads;
  };
  const std::vector<BenchResult> results = results_on(device, "copy");
  const double bytes = 8 * kMiB;
  const std::vector<std::pair<std::string, double>> expected = {
      {"quick up", bytes},       {"quick down", bytes / 2}, {"quick up", bytes / 2},
      {"quick down", bytes / 4}, {"quick down", bytes / 2}, {"quick up", bytes / 4}};
  ASSERT_EQ(results.size(), expected.size());
  for (std::size_t i = 0; i < results.size(); ++i) {
    EXPECT_EQ(results[i].limit_is, expected[i].first) << results[i].name;
    EXPECT_DOUBLE_EQ(results[i].limit.median(), expected[i].second * 1e-9) << results[i].name;
  }
}

TEST(FakeGpuBench, LanesTimeTheWaysThatRan) {
  const FakeGpuBackend backend;
  const auto device = backend.make(4 * kMiB);
  LaneCopies copies(*device, 4 * kMiB, {});
  for (const CopyWays ways :
       {CopyWays::kUpload, CopyWays::kBoth, CopyWays::kLocal, CopyWays::kDownload}) {
    const CopySeconds seconds = copies.run(ways);
    EXPECT_EQ(seconds.upload > 0, ways == CopyWays::kUpload || ways == CopyWays::kBoth);
    EXPECT_EQ(seconds.download > 0, ways == CopyWays::kDownload || ways == CopyWays::kBoth);
    EXPECT_EQ(seconds.local > 0, ways == CopyWays::kLocal);
  }
}

TEST(FakeGpuBench, KernelHasEveryKernelOfBothFamilies) {
  const std::vector<std::string> common = {
      "attention_forward", "attention_backward", "head_loss",           "norm_forward",
      "norm_backward",     "activation_forward", "activation_backward", "add",
      "embedding_forward", "embedding_backward", "accumulate_gradient", "round_gradient",
      "fill_zero",         "cast_parameters",    "norm_partials",       "adamw_fp32",
      "adamw_split",       "adamw_bf16_moments", "adamw_int8_moments",  "lion_fp32",
      "lion_split",        "lion_bf16_moments",  "lion_int8_moments",   "sgd_fp32",
      "sgd_split",         "sgd_bf16_moments",   "sgd_int8_moments"};
  std::vector<std::string> names = {"nano_bf16_rope", "gpt2_124m_bf16_add_positions"};
  for (const std::string prefix : {"nano_bf16_", "gpt2_124m_bf16_"}) {
    for (const std::string& kernel : common) names.push_back(prefix + kernel);
    for (const std::string coding : {"encode", "decode", "sum"}) {
      names.push_back(prefix + coding + "_wire");
    }
    for (const std::string linear : {"qkv", "projection", "up", "down"}) {
      for (const std::string what : {"_forward", "_backward_input", "_backward_weight"}) {
        names.push_back(prefix + "matmul_" + linear + what);
      }
    }
  }
  const std::vector<BenchResult> results = results_on(fake_device(), "kernel");
  EXPECT_THAT(names_of(results), testing::UnorderedElementsAreArray(names));
  for (const BenchResult& result : results) {
    const bool moves_bytes = result.unit == BenchUnit::kGigabytesPerSecond;
    EXPECT_TRUE(moves_bytes || result.unit == BenchUnit::kTeraflopsPerSecond) << result.name;
    EXPECT_EQ(result.goal.has_value(), moves_bytes) << result.name;
  }
}

TEST(FakeGpuBench, StepHasItsSpeedAndWhatLimitedIt) {
  const std::vector<BenchResult> results = results_on(fake_device(), "step");
  EXPECT_THAT(names_of(results),
              testing::ElementsAre("nano_bf16_on_device_64_tokens", "nano_bf16_on_host_64_tokens",
                                   "nano_bf16_on_host_128_tokens",
                                   "nano_bf16_optimizer_on_host_128_tokens"));
  for (const BenchResult& result : results) {
    EXPECT_EQ(result.unit, BenchUnit::kTokensPerSecond);
    const auto has = [&](const std::string& detail) {
      return std::ranges::count(result.details, detail, &BenchResult::Detail::name) == 1;
    };
    EXPECT_TRUE(has("busy_compute") && has("mfu") && has("processors")) << result.name;
    EXPECT_TRUE(has("busy_upload") || result.name.find("on_device") != std::string::npos)
        << result.name;
  }
}

TEST(FakeGpuBench, StepsCanBeChosen) {
  const BenchDevice device = fake_device();
  BenchOptions options;
  options.device = &device;
  options.repetitions = 1;
  options.small = true;
  options.tokens = 64;
  options.preset = "nano";
  SilentLog log;
  BenchRecord record;
  bench_named("step").run(options, record, log);
  EXPECT_THAT(names_of(record.results()),
              testing::ElementsAre("nano_bf16_on_device_64_tokens", "nano_bf16_on_host_64_tokens"));
  options.preset = "llama-1b";
  EXPECT_THROW(bench_named("step").run(options, record, log), ConfigError);
}

TEST(FakeGpuBench, StepsThatDoNotFitAreLeftOutAndAtLastRefused) {
  BenchDevice device = fake_device();
  device.capacity_bytes = device_limits_bytes(DType::kBF16, true) + 64 * kKiB;
  EXPECT_THROW(results_on(device, "step"), OutOfMemory);
  device.capacity_bytes = kMiB;
  EXPECT_THROW(results_on(device, "step"), OutOfMemory);
}

// A step makes 6 operations for each token and each weight of a product, and the operations of
// attention below the diagonal.
TEST(StepLight, CountsWhatAStepCannotDoWithout) {
  const ModelConfig model = load_model_config("nano");
  const BatchShape batch = {2, 32};
  ModelRuntimeOptions options;
  options.model = model;
  options.batch = batch;
  options.placement.micro_batches = 3;
  options.evaluates = false;
  const auto flops_with = [&](bool recompute) {
    options.placement.recompute = recompute;
    const TierPlan plan = plan_model(options);
    return flops_of_step(plan.training.program, plan.model);
  };
  const double rows = 3 * 64;
  const double block = 128 * (128 + 2 * 64) + 128 * 128 + 3 * 128 * 352;
  const double weights = 4 * block + 256 * 128;
  const double half_squares = 4 * 6 * rows * 32 * 128;
  const StepFlops kept = flops_with(false);
  EXPECT_DOUBLE_EQ(kept.necessary, 6 * rows * weights + half_squares);
  EXPECT_DOUBLE_EQ(kept.masked_halves, half_squares);
  EXPECT_EQ(kept.recomputed, 0);
  const StepFlops again = flops_with(true);
  EXPECT_DOUBLE_EQ(again.necessary, kept.necessary);
  EXPECT_GT(again.recomputed, 0);
  EXPECT_DOUBLE_EQ(tokens_at_light(kept, rows, 2 * kept.necessary), 2 * rows);
}

TEST(DeviceLimits, CallsTakeAboutAsLongAsAsked) {
  EXPECT_EQ(calls_for(0.1, 0.01), 10);
  EXPECT_EQ(calls_for(0.1, 1), 1);
  EXPECT_EQ(calls_for(1, 1e-6), 500);
  EXPECT_EQ(calls_for(1, 0), 500);
}

// Bytes per parameter: gradient 4, parameter 2 or 2 x 2, and the state twice. Blocks of codes also
// have exponents.
TEST(UpdateForms, TrafficIsWhatAnUpdateReadsAndWrites) {
  constexpr std::int64_t kElements = 1 << 20;
  const std::map<std::string, double> expected = {
      {"adamw_fp32", 4 + 2 + 2 * 12},        {"adamw_split", 4 + 4 + 2 * 10},
      {"adamw_bf16_moments", 4 + 4 + 2 * 6}, {"adamw_int8_moments", 4 + 4 + 2 * 4},
      {"lion_fp32", 4 + 2 + 2 * 8},          {"lion_split", 4 + 4 + 2 * 6},
      {"lion_bf16_moments", 4 + 4 + 2 * 4},  {"lion_int8_moments", 4 + 4 + 2 * 3},
      {"sgd_fp32", 4 + 2 + 2 * 8},           {"sgd_split", 4 + 4 + 2 * 6},
      {"sgd_bf16_moments", 4 + 4 + 2 * 4},   {"sgd_int8_moments", 4 + 4 + 2 * 3}};
  for (const UpdateForm& form : update_forms()) {
    const double bytes = update_traffic_bytes(form.state, kElements) / kElements;
    const double exponents = form.state.slot_form == SlotForm::kInt8 ? 0.5 : 0;
    EXPECT_NEAR(bytes, expected.at(form.name) + exponents / 2, exponents / 2) << form.name;
  }
}

TEST(StatedSpeed, IsKnownByTheNameOfTheGpu) {
  EXPECT_EQ(stated_flops_per_s("NVIDIA H100 80GB HBM3 (sm_90, 79.1 GiB)"), 989.5e12);
  EXPECT_EQ(stated_flops_per_s("NVIDIA H100 PCIe"), 756.5e12);
  EXPECT_EQ(stated_flops_per_s("NVIDIA A100-SXM4-80GB"), 312e12);
  EXPECT_EQ(stated_flops_per_s("NVIDIA A10"), 125e12);
  EXPECT_EQ(stated_flops_per_s("NVIDIA L40S"), 362e12);
  EXPECT_EQ(stated_flops_per_s("NVIDIA L4"), 121e12);
  EXPECT_FALSE(stated_flops_per_s("NVIDIA RTX A4000").has_value()) << "is no A40";
  EXPECT_FALSE(stated_flops_per_s("NVIDIA GH200 480GB").has_value());
}

}  // namespace
}  // namespace terrace
