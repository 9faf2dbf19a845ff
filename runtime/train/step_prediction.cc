#include "runtime/train/step_prediction.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>

#include "base/bytes.h"
#include "base/error.h"
#include "memory/cuda/cuda_device.h"
#include "memory/host/process_memory.h"
#include "offload/drive_record.h"
#include "runtime/machine/rank_profile.h"
#include "runtime/step/simulate.h"
#include "runtime/step/simulate_stages.h"
#include "runtime/step/stage_graph.h"
#include "runtime/train/device_rates.h"
#include "runtime/train/link_times.h"
#include "runtime/train/op_times.h"
#include "runtime/train/product_rate.h"

namespace terrace {
namespace {

constexpr int kSteps = 4;  // simulated steps: the last ones are in the steady state

// Takes the rates of the drives from their records, if all have one.
void remember_drives(const NvmeStoreOptions& nvme, StepPrediction& prediction) {
  double read = 0;
  double write = 0;
  for (const NvmeDirectory& directory : nvme.directories) {
    const std::optional<DriveFacts> facts = remembered_drive(directory.path);
    if (!facts.has_value()) return;
    read += facts->read_gb_per_s * 1e9;
    write += facts->write_gb_per_s * 1e9;
  }
  if (read <= 0 || write <= 0) return;
  prediction.drive.read_bytes_per_s = read;
  prediction.drive.write_bytes_per_s = write;
  prediction.drive.disk_bytes_per_s = std::max(read, write);
  prediction.drive_is_remembered = true;
}

// Returns the rate of the CPU device's products alone, which takes some hundredths of a second.
double product_rate_of(const ModelRuntimeOptions& options) {
  constexpr std::int64_t kRowsMost = 512;
  constexpr std::int64_t kWidthMost = 2048;
  return product_flops_per_s({.type = options.compute_type,
                              .rows = std::min(options.batch.rows(), kRowsMost),
                              .width = std::min(options.model.width, kWidthMost),
                              .threads = options.threads,
                              .cpus = options.cpus});
}

// Makes the device that the rank's engine will compute on, if it has memory of its own. It has the
// memory that the engine may take, as far as that is free now.
std::unique_ptr<ComputeDevice> device_of(const PredictedRank& rank) {
  if (exchange_of(rank.options.backend) == nullptr) return nullptr;
  const std::optional<GpuChoice>& gpu = rank.machine.gpu;
  const std::optional<std::size_t> budget =
      rank.options.budgets.at(static_cast<std::size_t>(Tier::kDevice));
  return rank.options.backend->make(std::min(
      budget.value_or(SIZE_MAX), gpu.has_value() ? gpu->capacity_bytes : std::size_t{SIZE_MAX}));
}

// The figures of this machine that a rank's step needs.
class MeasuredRank {
 public:
  MeasuredRank(const PredictedRank& rank, double seconds_most)
      : rank_(rank),
        device_(device_of(rank)),
        end_(std::chrono::steady_clock::now() + std::chrono::duration<double>(seconds_most)) {
    const std::int32_t ranks = rank.machine.ranks_on_host;
    profile_.compute_cores = device_ != nullptr ? 0 : rank.options.threads;
    if (device_ != nullptr) profile_.op_overhead_s = kDeviceOverheadS;
    profile_.update_cores = rank.options.update_threads;
    profile_.cores = std::max<double>(
        rank.options.threads, static_cast<double>(rank.machine.threads.usable_cpus) / ranks);
    bytes_most_ = rank.machine.limits.usable_bytes() / static_cast<std::size_t>(2 * ranks);
  }

  // Takes the drive's rates from the prediction, and gives it the others. All ranks are here
  // together.
  void measure(StepPrediction& prediction) {
    profile_.drive = prediction.drive;
    prediction.flops_per_s = profile_.flops_per_s =
        device_ != nullptr ? device_product_flops_per_s(*device_, rank_.options)
                           : product_rate_of(rank_.options);
    measure_links(rank_.ranks.steps(), profile_);
    prediction.collective_bytes_per_s = collective_bytes_per_s();
    try {
      measure_copies(rank_.options, profile_);
      if (device_ != nullptr) measure_device_copies(*device_, rank_.options, profile_);
      prediction.upload_bytes_per_s = profile_.upload_bytes_per_s;
      prediction.download_bytes_per_s = profile_.download_bytes_per_s;
      prediction.ops_are_measured = measure(rank_.options, rank_.plan);
    } catch (const OutOfMemory&) {  // a dry run may be for a machine with more memory
      prediction.ops_are_measured = false;
    }
  }

  void predict(StepPrediction& prediction) {
    const SimulationResult result = simulate(rank_.plan.training.program, profile_, kSteps);
    prediction.step_s = result.step_s;
    prediction.limit = result.bottleneck;
    if (rank_.options.ranks.shape.pipeline == 1) return;
    try {
      prediction.step_s = std::max(result.step_s, pipeline_step_s(prediction));
    } catch (const OutOfMemory&) {  // of another stage, whose rank says what it lacks
      prediction.ops_are_measured = false;
    }
  }

 private:
  double collective_bytes_per_s() {
    const MeshShape& mesh = rank_.options.ranks.shape;
    if (mesh.data > 1) return link_of(profile_, MeshAxis::kData).bytes_per_s;
    return mesh.tensor > 1 ? link_of(profile_, MeshAxis::kTensor).bytes_per_s : 0;
  }

  bool measure(const ModelRuntimeOptions& options, const TierPlan& plan) {
    const std::chrono::duration<double> left = end_ - std::chrono::steady_clock::now();
    return measure_ops({options, plan, std::max(0.0, left.count()), bytes_most_, device_.get()},
                       profile_);
  }

  // Returns the time of a step of all pipeline stages together. The ops of the other stages are
  // measured, too.
  double pipeline_step_s(StepPrediction& prediction) {
    std::vector<Program> programs;
    for (int stage = 0; stage < rank_.options.ranks.shape.pipeline; ++stage) {
      ModelRuntimeOptions of_stage = options_of_stage(rank_.options, stage);
      of_stage.shared_plans = nullptr;  // they would be kept
      TierPlan plan = plan_model(of_stage);
      prediction.ops_are_measured = prediction.ops_are_measured && measure(of_stage, plan);
      programs.push_back(std::move(plan.training.program));
    }
    return simulate_stages(pointers_to(programs), profile_).step_s;
  }

  const PredictedRank& rank_;
  const std::unique_ptr<ComputeDevice> device_;  // null: the CPU device
  const std::chrono::time_point<std::chrono::steady_clock, std::chrono::duration<double>> end_;
  std::size_t bytes_most_ = 0;
  MachineProfile profile_;
};

// Takes the prediction of the rank that takes longest, because the others wait for it. All ranks
// call it.
void take_slowest(const RankGroup& ranks, StepPrediction& prediction) {
  struct OfRank {
    double step_s = 0;
    Lane limit = Lane::kCompute;
  };
  if (ranks.world() == nullptr) return;
  for (const OfRank& rank :
       of_all_ranks(*ranks.world(), OfRank{prediction.step_s, prediction.limit})) {
    if (rank.step_s <= prediction.step_s) continue;
    prediction.step_s = rank.step_s;
    prediction.limit = rank.limit;
  }
}

std::string product_rate_text(double flops_per_s) {
  return flops_per_s < 1e12 ? fmt::format("{:.3g} GFLOP/s", flops_per_s * 1e-9)
                            : fmt::format("{:.3g} TFLOP/s", flops_per_s * 1e-12);
}

}  // namespace

std::optional<StepPrediction> predict_step(const PredictedRank& rank, double seconds_most) {
  const bool has_device = exchange_of(rank.options.backend) != nullptr;
  if (has_device && rank.ranks.count() > 1) return std::nullopt;
  StepPrediction prediction;
  remember_drives(rank.options.nvme, prediction);
  try {
    MeasuredRank measured(rank, seconds_most);
    rank.ranks.wait_for_all();
    measured.measure(prediction);
    measured.predict(prediction);
    take_slowest(rank.ranks, prediction);
  } catch (const OutOfMemory&) {
    if (!has_device) throw;
    return std::nullopt;
  }
  return prediction;
}

std::string describe_prediction(const StepPrediction& prediction, const Program& program,
                                std::int64_t tokens) {
  const double tokens_per_s = static_cast<double>(tokens) / prediction.step_s;
  std::string text = fmt::format(
      "predicted: about {:.3g} s a step here, {:.{}f} tokens/s, limited by the {} lane; matrix "
      "products run at {}, measured now{}",
      prediction.step_s, tokens_per_s, tokens_per_s < 10 ? 1 : 0, name_of(prediction.limit),
      product_rate_text(prediction.flops_per_s),
      prediction.ops_are_measured ? ", as was an op of each kind"
                                  : "; some ops are too slow or too large to time");
  const double written = lane_bytes(program, Lane::kWrite);
  if (lane_bytes(program, Lane::kRead) + written == 0) return text;
  text += fmt::format(
      ", drives read at {} and write at {}, {}", format_rate(prediction.drive.read_bytes_per_s),
      format_rate(prediction.drive.write_bytes_per_s),
      prediction.drive_is_remembered ? "measured by an earlier run"
                                     : "assumed because no run has measured them yet");
  if (written == 0) return text;
  return text + fmt::format("; at this pace {:.3g} TB a day are written",
                            written / prediction.step_s * 86400e-12);
}

std::optional<StepPrediction> tell_prediction(const PredictedRank& rank, std::int64_t tokens,
                                              TrainConsole& console) {
  const std::optional<StepPrediction> prediction = predict_step(rank, kPredictionSecondsMost);
  if (prediction.has_value()) {
    console.say(describe_prediction(*prediction, rank.plan.training.program, tokens));
  } else {
    console.say(
        "no step time is predicted: there are several ranks with a GPU each, or the GPU has too "
        "little free memory to time ops");
  }
  return prediction;
}

ResidentBefore resident_before(const RankGroup& ranks) {
  ranks.wait_for_all();
  const ResidentBefore before = {resident_bytes(), peak_resident_bytes()};
  ranks.wait_for_all();
  return before;
}

PlannedStep planned_step(const PlannedMemory& memory,
                         const std::optional<StepPrediction>& prediction, const RankGroup& ranks) {
  const auto largest = [&ranks](std::size_t bytes) {
    return static_cast<std::size_t>(ranks.largest(static_cast<std::int64_t>(bytes)));
  };
  const PlanMemory engine = memory_of_plan(memory.plan);
  const std::optional<GpuChoice>& gpu = memory.machine.gpu;
  const std::size_t in_process =
      engine.host_bytes + engine.beside_budgets() + (gpu.has_value() ? 0 : engine.device_bytes);
  PlannedStep planned;
  if (prediction) planned.step_s = prediction->step_s;
  planned.device_bytes = largest(engine.device_bytes);
  planned.host_bytes = largest(engine.host_bytes);
  // If ranks are threads, this process holds all ranks of the run, and pipeline stages differ.
  const std::size_t of_engines =
      memory.ranks_in_process > 1
          ? static_cast<std::size_t>(ranks.sum(static_cast<double>(in_process)))
          : largest(in_process);
  planned.process_bytes =
      std::max(largest(memory.before.bytes) + of_engines, largest(memory.before.peak_bytes));
  if (gpu.has_value()) {
    planned.device_bytes_taken = [ordinal = gpu->ordinal, before = gpu->capacity_bytes] {
      return before - std::min(before, cuda_capacity_bytes(ordinal));
    };
  }
  return planned;
}

}  // namespace terrace
