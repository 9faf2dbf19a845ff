#include <fmt/format.h>

#include <algorithm>

#include "base/bytes.h"
#include "base/error.h"
#include "bench/bench_engine.h"
#include "bench/bench_list.h"
#include "bench/bench_only.h"
#include "bench/device_limits.h"
#include "bench/step_runner.h"
#include "memory/host/host_limits.h"
#include "runtime/plan/step_flops.h"

namespace terrace {
namespace {

constexpr int kDeviceSteps = 6;  // of a measurement, four of them timed
constexpr int kLongSteps = 4;    // where a step has many tokens; two of them timed
constexpr std::int64_t kLongTokens = 1 << 17;
constexpr int kLongRoundsMax = 3;     // of such steps: one of 512k tokens takes 10 s
constexpr double kHostShare = 0.8;    // of the host memory that is usable, for the arena
constexpr double kTrySeconds = 0.05;  // of a product whose rate is looked for

// The homes of the states: all on one tier, or only the optimizer's on the host.
enum class SceneHomes : std::uint8_t { kDevice, kHost, kOptimizerOnHost };

std::string_view name_of(SceneHomes homes) {
  if (homes == SceneHomes::kDevice) return "on_device";
  return homes == SceneHomes::kHost ? "on_host" : "optimizer_on_host";
}

struct DeviceStepScene {
  const char* preset;
  SceneHomes homes;
  BatchShape batch;  // of a micro-batch
  std::int32_t micro_batches;

  std::int64_t tokens() const { return batch.rows() * micro_batches; }
  std::string name() const {
    std::string model = preset;
    std::ranges::replace(model, '-', '_');
    return fmt::format("{}_bf16_{}_{}_tokens", model, name_of(homes), tokens());
  }
};

std::vector<DeviceStepScene> all_scenes(bool small) {
  if (small) {
    return {{"nano", SceneHomes::kDevice, {2, 32}, 1},
            {"nano", SceneHomes::kHost, {2, 32}, 1},
            {"nano", SceneHomes::kHost, {2, 32}, 2},
            {"nano", SceneHomes::kOptimizerOnHost, {2, 32}, 2}};
  }
  std::vector<DeviceStepScene> scenes = {{"gpt2-124m", SceneHomes::kDevice, {16, 1024}, 1},
                                         {"llama-1b", SceneHomes::kDevice, {4, 2048}, 1}};
  for (const std::int32_t micro_batches : {1, 2, 4, 8, 16, 64}) {
    scenes.push_back({"llama-1b", SceneHomes::kHost, {4, 2048}, micro_batches});
  }
  scenes.push_back({"llama-7b", SceneHomes::kDevice, {8, 2048}, 1});
  scenes.push_back({"llama-7b", SceneHomes::kOptimizerOnHost, {8, 2048}, 8});
  return scenes;
}

// Returns the scenes that the options ask for.
std::vector<DeviceStepScene> device_step_scenes(const BenchOptions& options) {
  std::vector<DeviceStepScene> scenes = all_scenes(options.small);
  std::erase_if(scenes, [&](const DeviceStepScene& scene) {
    return (!options.preset.empty() && scene.preset != options.preset) ||
           (options.tokens != 0 && scene.tokens() != options.tokens);
  });
  if (scenes.empty()) {
    throw ConfigError("terrace bench step: no step has this --preset and these --tokens",
                      "docs/benchmarks.md lists the steps for a GPU");
  }
  return scenes;
}

ModelRuntimeOptions engine_options(const DeviceStepScene& scene, const BenchOptions& options,
                                   std::size_t device_bytes) {
  ModelRuntimeOptions engine =
      bench_engine(load_model_config(scene.preset), scene.batch, DType::kBF16, options);
  engine.backend = options.device->backend.get();
  engine.numa_nodes = options.device->numa_nodes;
  engine.update_threads =
      options.threads;  // as in training: they have the processors to themselves
  PlacementRequest& placement = engine.placement;
  placement.unified = false;
  placement.gpu = GpuSetting{.link_bytes_per_s = options.device->link_bytes_per_s};
  placement.homes[StateClass::kOptimizer] =
      scene.homes == SceneHomes::kDevice ? Tier::kDevice : Tier::kHost;
  placement.homes[StateClass::kParameters] = placement.homes[StateClass::kGradients] =
      scene.homes == SceneHomes::kHost ? Tier::kHost : Tier::kDevice;
  // Placed as they fit, as in training.
  placement.homes[StateClass::kActivations] = std::nullopt;
  placement.recompute = std::nullopt;
  placement.micro_batches = scene.micro_batches;
  const auto host_bytes = static_cast<double>(read_host_limits().usable_bytes());
  engine.budgets[static_cast<std::size_t>(Tier::kDevice)] = device_bytes;
  engine.budgets[static_cast<std::size_t>(Tier::kHost)] =
      static_cast<std::size_t>(kHostShare * host_bytes);
  return engine;
}

// Returns the model FLOPs utilisation of the measured rate, counting whole squares of attention.
Samples mfu_of(const StepFlops& flops, const std::vector<Samples>& samples) {
  Samples mfu;
  for (std::size_t i = 0; i < samples[0].values().size(); ++i) {
    const double counted = flops.necessary + flops.masked_halves;
    mfu.add(counted / samples[1].values()[i] / samples[0].values()[i]);
  }
  return mfu;
}

std::vector<BenchResult::Detail> details_of(const StepRunner& runner, const StepFlops& flops,
                                            const std::vector<Samples>& samples) {
  std::vector<BenchResult::Detail> details = {
      {"step", "s", samples[0]},
      {"step_at_speed_of_light", "s",
       samples[1].mapped([&](double peak) { return flops.necessary / peak; })},
      {"product_rate", "TFLOP/s", samples[1].mapped([](double peak) { return peak * 1e-12; })},
      {"mfu", "of the measured rate", mfu_of(flops, samples)},
      number_detail("recomputed", "of necessary products", flops.recomputed / flops.necessary),
      {"processors", "s", runner.processor_seconds()}};
  add_busy(details, "busy", runner.busy_s(), samples[0].values().back());
  return details;
}

// The device as a step finds it: its rates, and the bytes that are free.
struct StepDevice {
  DeviceLimits& limits;
  std::size_t free_bytes = 0;
};

void measure(const DeviceStepScene& scene, const BenchOptions& options, const StepDevice& device,
             BenchRecord& record, Log& log) {
  DeviceLimits& limits = device.limits;
  const bool is_long = scene.tokens() >= kLongTokens;
  const int rounds = is_long ? std::min(options.repetitions, kLongRoundsMax) : options.repetitions;
  log.info(fmt::format("bench step: {}, {}, {} x {} x {} tokens, {} rounds",
                       options.device->description, scene.name(), scene.micro_batches,
                       scene.batch.sequences, scene.batch.positions, rounds));
  const ModelRuntimeOptions engine = engine_options(scene, options, device.free_bytes);
  const int steps = is_long ? kLongSteps : kDeviceSteps;
  StepRunner runner(engine, log);
  runner.step_seconds(steps);
  runner.forget();
  const std::vector<Measurement> both = {[&] { return runner.step_seconds(steps); },
                                         [&] { return limits.product(); }};
  const StepFlops flops = flops_of_step(runner.program(), runner.model());
  const auto tokens = static_cast<double>(scene.tokens());
  std::vector<Samples> last;
  interleave(both, record.rounds(rounds), [&](const std::vector<Samples>& samples) {
    last = samples;
    record.put({.name = scene.name(),
                .unit = BenchUnit::kTokensPerSecond,
                .value = samples[0].mapped([&](double step_s) { return tokens / step_s; }),
                .limit = samples[1].mapped(
                    [&](double peak) { return tokens_at_light(flops, tokens, peak); }),
                .limit_is = fmt::format("steps that consist only of their matrix products, at the "
                                        "rate of {}",
                                        limits.product_is()),
                .details = details_of(runner, flops, samples)});
  });
  log.info(fmt::format("bench step: {}: {:.0f} tokens/s, MFU {:.3f}", scene.name(),
                       tokens / last[0].median(), mfu_of(flops, last).median()));
}

}  // namespace

std::vector<std::string> names_of_device_step(const BenchOptions& options) {
  std::vector<std::string> names;
  for (const DeviceStepScene& scene : device_step_scenes(options)) names.push_back(scene.name());
  return names;
}

void bench_device_step(const BenchOptions& options, BenchRecord& record, Log& log) {
  const std::size_t kept = device_limits_bytes(DType::kBF16, options.small);
  if (options.device->capacity_bytes <= kept) {
    throw OutOfMemory(fmt::format("{} has only {} free, but measuring its rate takes {}",
                                  options.device->description,
                                  format_size(options.device->capacity_bytes), format_size(kept)),
                      "end other programs that use it");
  }
  CaseDevice device(*options.device, kept);
  DeviceLimits limits(device, DType::kBF16, kTrySeconds, options.small);
  record.expect(names_of_device_step(options));
  std::vector<DeviceStepScene> scenes = device_step_scenes(options);
  std::erase_if(scenes,
                [&](const DeviceStepScene& scene) { return !is_wanted(options, scene.name()); });
  for (const DeviceStepScene& scene : scenes) {
    record.check_time();
    try {
      measure(scene, options, {limits, options.device->capacity_bytes - kept}, record, log);
    } catch (const OutOfMemory& error) {
      // A smaller machine measures what fits.
      if (record.results().empty() && &scene == &scenes.back()) throw;
      record.leave_out(scene.name());
      log.warning(fmt::format("bench step: {} is left out: {}", scene.name(), error.what()));
    }
  }
}

}  // namespace terrace
