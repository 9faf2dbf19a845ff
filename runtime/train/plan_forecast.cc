#include "runtime/train/plan_forecast.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "base/bytes.h"
#include "base/error.h"
#include "runtime/config/train_config.h"
#include "runtime/machine/device_speeds.h"
#include "runtime/machine/power_cap.h"
#include "runtime/machine/remembered_machine.h"
#include "runtime/machine/shipped_machines.h"
#include "runtime/plan/home_choice.h"
#include "runtime/train/train_setup.h"
#include "runtime/train/tuning.h"

namespace terrace {
namespace {

// The part of a device's memory that a run can take: the rest is for the driver, the libraries and
// the communicators.
constexpr double kUsableDeviceShare = 0.94;
constexpr double kUsableHostShare = 0.9;

// Returns the part of a node that one of its ranks has, as if the rank ran there.
MachineShare share_of(const Machine& machine, std::int32_t ranks, const TrainOptions& options) {
  MachineShare share;
  const double host = machine.value(MachineFigure::kHostMemoryBytes);
  share.limits.total_bytes = static_cast<std::size_t>(host);
  share.limits.available_bytes = static_cast<std::size_t>(host * kUsableHostShare);
  share.ranks_on_host = ranks;
  const double cores = machine.value_or(MachineFigure::kCores, ranks);
  const int threads = std::max(1, static_cast<int>(cores) / ranks);
  share.threads.compute = options.tiers.threads.value_or(threads);
  share.threads.update = machine.devices > 0 ? threads : std::max(1, threads / 2);
  share.threads.usable_cpus = threads * ranks;
  if (machine.devices == 0) return share;
  GpuChoice gpu;
  gpu.capacity_bytes = static_cast<std::size_t>(machine.value(MachineFigure::kDeviceMemoryBytes) *
                                                kUsableDeviceShare);
  gpu.link_bytes_per_s = machine.value_or(MachineFigure::kUploadBytesPerS, 0);
  share.gpu = gpu;
  return share;
}

TrainOptions options_on(const PlanOptions& options, const Machine& machine) {
  TrainOptions train = options.train;
  train.run.dry_run = true;  // the machine's limits are not this one's
  if (machine.devices == 0 && train.precision == Precision::kFp16) {
    throw ConfigError(fmt::format("--precision fp16 computes on GPUs only, and the machine {} has "
                                  "none",
                                  machine.name),
                      "plan with --precision bf16");
  }
  if (machine.devices == 0) return train;
  train.tiers.device.kind = DeviceKind::kCuda;
  return train;
}

std::optional<PowerCap> cap_for(const PlanOptions& options, const Machine& machine) {
  if (!options.power_cap.has_value()) return std::nullopt;
  return power_cap_on(machine, *options.power_cap);
}

std::string first_line(const std::string& text) { return text.substr(0, text.find('\n')); }

}  // namespace

Machine planned_machine(const PlanOptions& options) {
  if (!options.machine.empty()) return find_machine(options.machine);
  if (std::optional<Machine> machine = remembered_machine()) return *std::move(machine);
  throw ConfigError("this machine has not been measured yet",
                    fmt::format("measure it with terrace profile FILE, or name a machine: "
                                "--profile {}",
                                shipped_machine_names().front()));
}

std::int32_t planned_ranks_per_node(const PlanOptions& options, const Machine& machine) {
  const std::int32_t threads = options.train.ranks.local_ranks;
  const std::int32_t usual = machine.devices > 0 && threads == 1 ? machine.devices : threads;
  const std::int32_t ranks = options.ranks_per_node.value_or(usual);
  constexpr std::int64_t kRanksMost = 1 << 20;
  if (std::int64_t{ranks} * options.nodes > kRanksMost) {
    throw ConfigError(fmt::format("{} nodes of {} ranks are more than {} ranks", options.nodes,
                                  ranks, kRanksMost),
                      "lower --nodes or the ranks of a node");
  }
  if (machine.devices == 0 || ranks <= machine.devices) return ranks;
  throw ConfigError(fmt::format("--ranks-per-node {}: a node of {} has {} devices, and each rank "
                                "has one of its own",
                                ranks, machine.name, machine.devices),
                    "lower it, or raise --nodes");
}

Machine capped_machine(const PlanOptions& options, const Machine& machine) {
  const std::optional<PowerCap> cap = cap_for(options, machine);
  return cap.has_value() ? under_power_cap(machine, *cap) : machine;
}

PlannedRun::PlannedRun(const PlanOptions& options, const Machine& machine, PlanEffort effort)
    : cap_(cap_for(options, machine)),
      machine_(capped(machine)),
      nodes_(options.nodes),
      ranks_per_node_(planned_ranks_per_node(options, machine_)),
      train_(options_on(options, machine_)) {
  const int ranks = nodes_ * ranks_per_node_;
  settle_batch(train_, ranks);
  mesh_ = mesh_for(train_, ranks, ranks_per_node_);
  const ModelConfig model = tuned_model(train_.model).config;
  engine_ = engine_options_for(train_, model, share_of(machine_, ranks_per_node_, train_));
  engine_.ranks.shape = mesh_;
  engine_.zero_stage = zero_stage_for(train_, mesh_);
  if (engine_.stage_speeds.empty()) {
    engine_.stage_speeds = unequal_stage_speeds(machine_, rank_setting());
  }
  engine_.placement.explains_refusal = effort == PlanEffort::kExplained;
  if (effort != PlanEffort::kQuick) return;
  engine_.evaluates = false;
  if (!engine_.placement.lookahead.has_value()) engine_.placement.lookahead = kUsualLookahead;
}

Machine PlannedRun::capped(const Machine& machine) const {
  return cap_.has_value() ? under_power_cap(machine, *cap_) : machine;
}

RankSetting PlannedRun::rank_setting() const {
  return {engine_.compute_type, mesh_, ranks_per_node_};
}

std::int64_t PlannedRun::tokens_per_step() const {
  return engine_.batch.rows() * engine_.placement.micro_batches * mesh_.data;
}

ModelRuntimeOptions PlannedRun::engine_of(int stage) const {
  ModelRuntimeOptions engine = engine_;
  engine.ranks.position.pipeline = stage;
  return engine;
}

StepModel PlannedRun::stage_model(int stage) const { return step_model_of(engine_of(stage)); }

TierPlan PlannedRun::plan_stage(int stage) const {
  TierPlan plan = plan_model(engine_of(stage));
  check_drives_of_node(plan.ledger[Tier::kNvme].peak_bytes);
  return plan;
}

PlannedStages PlannedRun::plan_stages() const {
  PlannedStages stages;
  for (int stage = 0; stage < mesh_.pipeline; ++stage) {
    TierPlan plan = plan_stage(stage);
    PlannedStage planned;
    planned.flops = flops_of_step(plan.training.program, plan.model);
    planned.ledger = plan.ledger;
    for (std::int32_t u = 0; u <= plan.model.last_unit(); ++u) {
      planned.units += plan.model.has_unit(u) ? 1 : 0;
    }
    planned.program = std::move(plan.training.program);
    add_kernels(engine_of(stage), planned.program, planned.kernels);
    stages.push_back(std::move(planned));
  }
  return stages;
}

RunForecast PlannedRun::forecast(const PlannedStages& stages, const Machine& machine) const {
  RunForecast forecast = forecast_run(stages, capped(machine), rank_setting());
  forecast.power_cap = cap_;
  forecast.nodes = nodes_;
  forecast.zero_stage = engine_.zero_stage;
  forecast.zero_partition = engine_.zero_partition;
  forecast.wire = engine_.wire;
  forecast.tokens_per_step = tokens_per_step();
  return forecast;
}

void PlannedRun::check_drives_of_node(std::size_t rank_bytes) const {
  const double needed = static_cast<double>(rank_bytes) * ranks_per_node_;
  if (!machine_.knows(MachineFigure::kDriveBytes)) return;
  const double there = machine_.value(MachineFigure::kDriveBytes);
  if (needed <= there) return;
  throw OutOfMemory(fmt::format("the ranks of a node need {} of drives, and a node of {} has {}",
                                format_size(static_cast<std::size_t>(needed)), machine_.name,
                                format_size(static_cast<std::size_t>(there))),
                    "raise --nodes with --zero-stage 3, or place less on nvme");
}

PlanOutcome try_plan(const PlanOptions& options, const Machine& machine, PlanEffort effort) {
  PlanOutcome outcome;
  try {
    const PlannedRun run(options, machine, effort);
    outcome.forecast = run.forecast(run.plan_stages(), machine);
  } catch (const OutOfMemory& error) {
    outcome.lacks_memory = true;
    outcome.refusal = first_line(error.what());
  } catch (const UnknownFigure& error) {
    outcome.lacks_figure = true;
    outcome.refusal = first_line(error.what());
  } catch (const ConfigError& error) {
    outcome.refusal = first_line(error.what());
  }
  return outcome;
}

}  // namespace terrace
