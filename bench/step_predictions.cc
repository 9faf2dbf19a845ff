// Measures steps of ten configurations beside what the simulator says of them.

#include <fmt/format.h>

#include <algorithm>
#include <memory>

#include "base/bytes.h"
#include "bench/bench_engine.h"
#include "bench/bench_list.h"
#include "bench/bench_only.h"
#include "bench/drive_check.h"
#include "bench/profile_load.h"
#include "bench/step_runner.h"
#include "memory/host/thread_plan.h"
#include "runtime/model/model_shape.h"
#include "runtime/step/simulate.h"

namespace terrace {
namespace {

// Returns the number of steps of a measurement, and of a simulation.
int predicted_steps(const BenchOptions& options) { return options.small ? 3 : 8; }
constexpr int kRounds = 5;  // at most: there are ten configurations

// A model and a batch. The time that the ops of a step take depends on them and on nothing else.
struct Scene {
  const char* name;
  const char* model;  // a preset, or kSmallLlama
  BatchShape batch;
  DType type;
};

// Eight blocks of llama, 33M parameters.
constexpr const char* kSmallLlama = "llama-33m";

struct Configuration {
  const char* name;
  std::size_t scene;
  // Applied to a placement that has everything on the host and clips.
  void (*change)(ModelRuntimeOptions& engine);
};

std::vector<Scene> scenes_for(bool small) {
  if (small) {
    return {{"nano_bf16", "nano", {1, 32}, DType::kBF16},
            {"nano_fp32", "nano", {1, 16}, DType::kF32},
            {"nano_wide_bf16", "nano", {2, 32}, DType::kBF16},
            {"nano_wide_fp32", "nano", {2, 16}, DType::kF32}};
  }
  return {{"gpt2_bf16", "gpt2-124m", {1, 256}, DType::kBF16},
          {"gpt2_fp32", "gpt2-124m", {1, 128}, DType::kF32},
          {"llama_bf16", kSmallLlama, {2, 512}, DType::kBF16},
          {"llama_fp32", kSmallLlama, {2, 256}, DType::kF32}};
}

void accumulate(ModelRuntimeOptions& engine, std::int32_t micro_batches, MicroBatchOrder order) {
  engine.placement.micro_batches = micro_batches;
  engine.placement.order = order;
}

void without_clipping(ModelRuntimeOptions& engine) { engine.optimizer.max_grad_norm = 0; }

// Leaves everything at home on the host, and computes in an arena of its own.
void on_a_device(ModelRuntimeOptions& engine) {
  engine.placement.unified = false;
  engine.placement.homes[StateClass::kActivations] = Tier::kDevice;
}

constexpr auto kConfigurations = std::to_array<Configuration>({
    {"memory", 0, [](ModelRuntimeOptions&) {}},
    {"memory_unclipped_accumulated", 0,
     [](ModelRuntimeOptions& engine) {
       without_clipping(engine);
       accumulate(engine, 2, MicroBatchOrder::kMicroBatchMajor);
     }},
    {"optimizer_on_nvme", 0,
     [](ModelRuntimeOptions& engine) {
       engine.placement.has_nvme = true;
       engine.placement.homes[StateClass::kOptimizer] = Tier::kNvme;
     }},
    {"states_on_nvme_unclipped_layer_major", 0,
     [](ModelRuntimeOptions& engine) {
       place_states_on_nvme(engine);
       without_clipping(engine);
       accumulate(engine, 3, MicroBatchOrder::kLayerMajor);
     }},
    {"device_accumulated", 0,
     [](ModelRuntimeOptions& engine) {
       on_a_device(engine);
       accumulate(engine, 2, MicroBatchOrder::kMicroBatchMajor);
     }},
    {"memory", 1, [](ModelRuntimeOptions&) {}},
    {"recomputed", 2, [](ModelRuntimeOptions& engine) { engine.placement.recompute = true; }},
    {"device_states_on_nvme_layer_major", 2,
     [](ModelRuntimeOptions& engine) {
       on_a_device(engine);
       place_states_on_nvme(engine);
       accumulate(engine, 2, MicroBatchOrder::kLayerMajor);
     }},
    {"activations_on_nvme", 2,
     [](ModelRuntimeOptions& engine) {
       engine.placement.has_nvme = true;
       engine.placement.homes[StateClass::kActivations] = Tier::kNvme;
     }},
    {"states_on_nvme_unclipped", 3,
     [](ModelRuntimeOptions& engine) {
       place_states_on_nvme(engine);
       without_clipping(engine);
     }},
});

ModelConfig model_of(const Scene& scene) {
  if (std::string_view(scene.model) != kSmallLlama) return load_model_config(scene.model);
  ModelConfig model = with_shape(load_model_config("nano"), {.layers = 8,
                                                             .width = 512,
                                                             .heads = 8,
                                                             .key_value_heads = 4,
                                                             .head_width = 64,
                                                             .intermediate = 1408,
                                                             .vocabulary = 8192,
                                                             .positions = 512});
  model.name = kSmallLlama;
  return model;
}

ModelRuntimeOptions options_for(const Scene& scene, const BenchOptions& bench) {
  return bench_engine(model_of(scene), scene.batch, scene.type, bench);
}

constexpr int kDriveRequests = 4;
constexpr double kDriveSeconds = 0.3;  // of a measurement, as a part of the options' seconds

std::size_t drive_extent_bytes(const BenchOptions& options) {
  return options.small ? kMiB : 64 * kMiB;
}

// Returns the bytes of a load. Reads and writes in flight together each have extents of their own.
std::uint64_t drive_load_bytes(std::uint64_t step_bytes, const BenchOptions& options) {
  return std::max<std::uint64_t>(step_bytes, 2 * kDriveRequests * drive_extent_bytes(options));
}

// The drive as a step uses it, in files as new as the step's own and about as large: a drive is not
// equally fast everywhere, nor with all sizes.
class DriveLoads {
 public:
  DriveLoads(const ModelRuntimeOptions& engine, const Program& program, const BenchOptions& options,
             Log& log)
      : seconds_(kDriveSeconds * options.seconds),
        checked_(load_of(engine, program, options, true), log),
        unchecked_(load_of(engine, program, options, false), log),
        transfers_in_flight_(transfers_in_flight(checked_.store(), program)) {}

  void measure(MachineProfile& profile, OpsAlone& ops) {
    profile.io_depth = transfers_in_flight_;
    profile.drive = measure_drive(checked_, seconds_);
    profile.unchecked_drive = measure_drive(unchecked_, seconds_);
    profile.transfer_displacement = ops.transfer_displacement(profile, checked_);
  }

 private:
  static StoreLoad::Options load_of(const ModelRuntimeOptions& engine, const Program& program,
                                    const BenchOptions& options, bool checksums) {
    StoreLoad::Options load = {.store = engine.nvme,
                               .extent_bytes = drive_extent_bytes(options),
                               .requests = kDriveRequests};
    load.total_bytes = drive_load_bytes(program.use_of(Tier::kNvme).packed_bytes, options);
    load.store.checksums = checksums;
    return load;
  }

  // Returns how many transfers are in flight. A store serves a direction's requests in their order,
  // a fixed number of blocks at a time.
  static int transfers_in_flight(const BlockStore& store, const Program& program) {
    double bytes_in_flight = 0;
    for (const StorePath& path : store.paths()) {
      bytes_in_flight += static_cast<double>(path.depth) * static_cast<double>(store.block_bytes());
    }
    const auto transfers = std::ranges::count_if(
        program.ops, [](const Op& op) { return is_of_kind(op.lane, LaneKind::kDrive); });
    const double bytes = lane_bytes(program, Lane::kRead) + lane_bytes(program, Lane::kWrite);
    if (bytes == 0) return 1;
    return std::max(1, static_cast<int>(bytes_in_flight * static_cast<double>(transfers) / bytes));
  }

  const double seconds_;
  StoreLoad checked_;
  StoreLoad unchecked_;
  const int transfers_in_flight_;
};

// The machine that a step runs on.
class ThisMachine {
 public:
  explicit ThisMachine(const BenchOptions& options)
      : options_(options), copies_(options.small ? kMiB : 256 * kMiB, options.threads) {}

  // `drive`: null if the step uses none.
  MachineProfile profile(OpsAlone& ops, int update_threads, DriveLoads* drive) {
    MachineProfile profile;
    profile.cores = std::max(options_.threads, read_host_limits().usable_cpus());
    profile.compute_cores = options_.threads;
    profile.update_cores = update_threads;
    ops.measure(profile);
    copies_.measure(profile);
    profile.checksum_s_per_byte =
        checksum_seconds_per_byte(0.01 * options_.seconds) / update_threads;
    profile.update_displacement = ops.update_displacement(profile, drive != nullptr);
    if (drive != nullptr) drive->measure(profile, ops);
    return profile;
  }

 private:
  const BenchOptions options_;
  CopiesAlone copies_;
};

using Details = decltype(BenchResult::details);

void add_drive(Details& details, const std::string& prefix, const DriveRates& drive) {
  const std::pair<const char*, double> rates[] = {{"read", drive.read_bytes_per_s},
                                                  {"write", drive.write_bytes_per_s},
                                                  {"mixed", drive.disk_bytes_per_s}};
  for (const auto& [name, rate] : rates) {
    details.push_back(number_detail(fmt::format("{}_{}", prefix, name), "GB/s", rate * 1e-9));
  }
}

Details details_of(const StepRunner& runner, const MachineProfile& profile,
                   const SimulationResult& simulated, int steps,
                   const std::vector<Samples>& samples) {
  std::array<double, kLaneCount> per_step{};
  for (std::size_t l = 0; l < kLaneCount; ++l) per_step[l] = simulated.busy_s[l] / steps;
  Details details = {{"predicted_over_measured", "", ratios_of_rounds(samples[1], samples[0])},
                     number_detail("update_displacement", "cores", profile.update_displacement)};
  add_busy(details, "busy", runner.busy_s(), samples[0].values().back());
  add_busy(details, "busy_predicted", per_step, samples[1].values().back());
  if (profile.unchecked_drive) {
    details.push_back(
        number_detail("transfer_displacement", "cores", profile.transfer_displacement));
    details.push_back(number_detail("transfers_sharing_a_direction", "transfers",
                                    static_cast<double>(profile.io_depth)));
    add_drive(details, "drive", profile.drive);
    add_drive(details, "drive_without_checksums", *profile.unchecked_drive);
  }
  return details;
}

// One of the ten configurations, with the name of its result.
struct PredictedPart {
  std::string name;
  std::size_t scene;
  const Configuration* configuration;
};

std::vector<PredictedPart> parts_of(const BenchOptions& options) {
  const std::vector<Scene> scenes = scenes_for(options.small);
  std::vector<PredictedPart> parts;
  for (std::size_t s = 0; s < scenes.size(); ++s) {
    for (const Configuration& configuration : kConfigurations) {
      if (configuration.scene != s) continue;
      parts.push_back({fmt::format("step_predicted_{}_{}", scenes[s].name, configuration.name), s,
                       &configuration});
    }
  }
  return parts;
}

std::vector<PredictedPart> wanted_parts(const BenchOptions& options) {
  std::vector<PredictedPart> parts = parts_of(options);
  std::erase_if(parts, [&](const PredictedPart& part) { return !is_wanted(options, part.name); });
  return parts;
}

int rounds_of(const BenchOptions& options) { return std::min(kRounds, options.repetitions); }

// A step that is predicted and measured, and the loads that measure its ops and the machine alone.
struct PredictedStep {
  const std::string& name;
  const ModelRuntimeOptions& engine;
  OpsAlone& ops;
  ThisMachine& machine;
  Rounds rounds;
};

void measure(const PredictedStep& step, const BenchOptions& options, BenchRecord& record,
             Log& log) {
  const auto& [name, engine, ops, machine, rounds] = step;
  log.info(fmt::format("bench step: {}, predicted and measured", name));
  StepRunner runner(engine, log);
  std::unique_ptr<DriveLoads> drive;
  if (runner.program().use_of(Tier::kNvme).packed_bytes > 0) {
    drive = std::make_unique<DriveLoads>(engine, runner.program(), options, log);
  }
  runner.step_seconds(3);
  SimulationResult simulated;
  MachineProfile profile;
  const int steps = predicted_steps(options);
  const std::vector<Measurement> measurements = {
      [&] { return runner.step_seconds(steps); },
      [&] {
        profile = step.machine.profile(step.ops, runner.update_threads(), drive.get());
        simulated = simulate(runner.program(), profile, steps);
        return simulated.step_s;
      }};
  interleave(measurements, rounds, [&](const std::vector<Samples>& samples) {
    record.put({.name = name,
                .unit = BenchUnit::kSeconds,
                .value = samples[0],
                .limit = samples[1],
                .limit_is = "the step that the simulator predicts from ops, copies and the drive, "
                            "each measured alone",
                .details = details_of(runner, profile, simulated, steps, samples)});
  });
}

}  // namespace

void run_step_predictions(const BenchOptions& options, double share, BenchRecord& record,
                          Log& log) {
  const std::vector<PredictedPart> parts = wanted_parts(options);
  if (parts.empty()) return;
  const std::vector<Scene> scenes = scenes_for(options.small);
  ThisMachine machine(options);
  std::unique_ptr<OpsAlone> ops;
  std::size_t scene_of_ops = scenes.size();
  for (std::size_t i = 0; i < parts.size(); ++i) {
    record.check_time();
    const ModelRuntimeOptions scene = options_for(scenes[parts[i].scene], options);
    if (scene_of_ops != parts[i].scene) {
      ops.reset();
      ops = std::make_unique<OpsAlone>(scene);
      scene_of_ops = parts[i].scene;
    }
    ModelRuntimeOptions engine = scene;
    parts[i].configuration->change(engine);
    const Rounds rounds =
        record.rounds(rounds_of(options), share / static_cast<double>(parts.size() - i));
    measure({parts[i].name, engine, *ops, machine, rounds}, options, record, log);
  }
}

namespace {

// Returns the seconds of a step that computes and does nothing else.
double compute_seconds(const ModelRuntimeOptions& engine, const MachineSpeed& speed) {
  return engine.placement.micro_batches * flops_of_model_step(engine.model, engine.batch.rows()) /
         speed.flops_per_s(engine.compute_type);
}

}  // namespace

std::vector<std::string> step_prediction_names(const BenchOptions& options) {
  std::vector<std::string> names;
  for (const PredictedPart& part : parts_of(options)) names.push_back(part.name);
  return names;
}

BenchCost cost_of_step_predictions(const BenchOptions& options, const MachineSpeed& speed) {
  // Measuring ops alone, and compute beside updates and transfers, takes about as long as this many
  // more steps.
  constexpr double kStepsOfProfile = 8;
  constexpr double kWrittenOfMeasurements = 1.5;  // a write, and half of a mix
  const std::vector<Scene> scenes = scenes_for(options.small);
  const double steps = predicted_steps(options);
  const double rounds = rounds_of(options);
  BenchCost cost;
  for (const PredictedPart& part : wanted_parts(options)) {
    ModelRuntimeOptions engine = options_for(scenes[part.scene], options);
    part.configuration->change(engine);
    cost.seconds += compute_seconds(engine, speed) * (rounds * (steps + kStepsOfProfile) + 5);
    const std::uint64_t bytes = nvme_bytes(engine);
    if (bytes == 0) continue;
    const double drive_s = rounds * 2 * kDriveSeconds * options.seconds;
    const double written = static_cast<double>(bytes) * (rounds * steps + 4) +
                           2 * static_cast<double>(drive_load_bytes(bytes, options)) +
                           kWrittenOfMeasurements * drive_s * speed.drive_write_bytes_per_s;
    cost.written_bytes += static_cast<std::uint64_t>(written);
    cost.seconds += 3 * drive_s + static_cast<double>(bytes) * (rounds * steps + 4) /
                                      speed.drive_write_bytes_per_s;
  }
  return cost;
}

// A configuration has its engine and two loads at a time. Each load has as many bytes or more.
void check_step_predictions(const BenchOptions& options, Log& log) {
  const std::vector<Scene> scenes = scenes_for(options.small);
  std::uint64_t most = 0;
  for (const PredictedPart& part : wanted_parts(options)) {
    ModelRuntimeOptions engine = options_for(scenes[part.scene], options);
    part.configuration->change(engine);
    const std::uint64_t bytes = nvme_bytes(engine);
    if (bytes != 0) most = std::max(most, bytes + 2 * drive_load_bytes(bytes, options));
  }
  check_drives(options, most, log);
}

void bench_step_predictions(const BenchOptions& options, BenchRecord& record, Log& log) {
  constexpr double kQuickShare = 0.4;
  const std::optional<BenchOptions> quick = quick_options(options);
  if (quick) record.expect(step_prediction_names(*quick));
  record.expect(step_prediction_names(options));
  check_step_predictions(options, log);
  if (quick) run_step_predictions(*quick, kQuickShare, record, log);
  run_step_predictions(options, 1, record, log);
}

}  // namespace terrace
