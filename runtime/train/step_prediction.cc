#include "runtime/train/step_prediction.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <functional>
#include <limits>
#include <optional>

#include "base/bytes.h"
#include "memory/cuda/cuda_device.h"
#include "memory/host/worker_arena.h"
#include "offload/drive_record.h"
#include "runtime/step/simulate.h"

namespace terrace {
namespace {

constexpr int kSteps = 4;  // simulated steps: the last ones are in the steady state

double seconds_of(const std::function<void()>& work) {
  const auto begin = std::chrono::steady_clock::now();
  work();
  const std::chrono::duration<double> passed = std::chrono::steady_clock::now() - begin;
  return passed.count();
}

// Returns the rate of a product of the model's width: the fastest of a few tries.
double product_flops_per_s(const ModelRuntimeOptions& options) {
  constexpr std::int64_t kRowsMost = 512;
  constexpr std::int64_t kWidthMost = 2048;
  constexpr double kEnough = 0.03;  // seconds
  const std::int64_t rows = std::min(options.batch.rows(), kRowsMost);
  const std::int64_t width = std::min(options.model.width, kWidthMost);
  const DType type = options.compute_type;
  const auto bytes = [&](std::int64_t elements) {
    return static_cast<std::size_t>(elements) * size_of(type);
  };
  HostMemory memory(2 * bytes(rows * width) + bytes(width * width) + 3 * 4096, {});
  std::byte* at = memory.bytes().data();
  const auto matrix = [&](std::int64_t r, std::int64_t c) {
    const TensorView made = view(at, type, r, c);
    at += round_up(bytes(r * c), 4096);
    return made;
  };
  const MatmulForward product = {
      matrix(rows, width), matrix(width, width), {}, matrix(rows, width)};
  const KernelTable& kernels = *cpu_lane_kernels().table;
  WorkerArena workers(options.threads, options.cpus);
  HostMemory scratch(
      std::max<std::size_t>(kernels.matmul_forward_workspace(product, workers.threads()), 64), {});
  KernelContext context;
  context.workers = &workers;
  context.workspace = scratch.bytes();
  double best = std::numeric_limits<double>::infinity();
  double spent = 0;
  for (int tries = 0; tries < 3 || (tries < 200 && spent < kEnough); ++tries) {
    const double seconds = seconds_of([&] { kernels.matmul_forward(context, product); });
    spent += seconds;
    best = std::min(best, seconds);
  }
  return 2.0 * static_cast<double>(rows * width * width) / best;
}

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

}  // namespace

StepPrediction predict_step(const ModelRuntimeOptions& options, const TierPlan& plan) {
  StepPrediction prediction;
  prediction.flops_per_s = product_flops_per_s(options);
  remember_drives(options.nvme, prediction);
  MachineProfile profile;
  profile.flops_per_s = prediction.flops_per_s;
  profile.drive = prediction.drive;
  profile.compute_cores = options.threads;
  profile.update_cores = std::min<double>(profile.update_cores, options.update_threads);
  profile.cores = options.threads;
  const SimulationResult result = simulate(plan.training.program, profile, kSteps);
  prediction.step_s = result.step_s;
  prediction.limit = result.bottleneck;
  return prediction;
}

std::string describe_prediction(const StepPrediction& prediction, const Program& program,
                                std::int64_t tokens) {
  const double tokens_per_s = static_cast<double>(tokens) / prediction.step_s;
  std::string text = fmt::format(
      "predicted: about {:.3g} s a step here, {:.{}f} tokens/s, limited by the {} lane; matrix "
      "products run at {:.3g} GFLOP/s, measured now",
      prediction.step_s, tokens_per_s, tokens_per_s < 10 ? 1 : 0, name_of(prediction.limit),
      prediction.flops_per_s * 1e-9);
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

double tell_prediction(const ModelRuntimeOptions& options, const TierPlan& plan,
                       std::int64_t tokens, TrainConsole& console) {
  const StepPrediction prediction = predict_step(options, plan);
  console.say(describe_prediction(prediction, plan.training.program, tokens));
  return prediction.step_s;
}

PlannedStep planned_step(const PlannedMemory& memory, std::optional<double> step_s,
                         const RankGroup& ranks) {
  const auto largest = [&ranks](std::size_t bytes) {
    return static_cast<std::size_t>(ranks.largest(static_cast<std::int64_t>(bytes)));
  };
  const PlanMemory engine = memory_of_plan(memory.plan);
  const std::optional<GpuChoice>& gpu = memory.machine.gpu;
  const std::size_t in_process =
      engine.host_bytes + engine.beside_budgets() + (gpu.has_value() ? 0 : engine.device_bytes);
  PlannedStep planned;
  planned.step_s = step_s;
  planned.device_bytes = largest(engine.device_bytes);
  planned.host_bytes = largest(engine.host_bytes);
  // If ranks are threads, this process holds all ranks of the run, and pipeline stages differ.
  const std::size_t of_engines =
      memory.ranks_in_process > 1
          ? static_cast<std::size_t>(ranks.sum(static_cast<double>(in_process)))
          : largest(in_process);
  planned.process_bytes = largest(memory.before_bytes) + of_engines;
  if (gpu.has_value()) {
    planned.device_bytes_taken = [ordinal = gpu->ordinal, before = gpu->capacity_bytes] {
      return before - std::min(before, cuda_capacity_bytes(ordinal));
    };
  }
  return planned;
}

}  // namespace terrace
