#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "runtime/config/plan_options.h"
#include "runtime/engine/model_runtime.h"
#include "runtime/machine/machine.h"
#include "runtime/machine/power_cap.h"
#include "runtime/train/run_forecast.h"

// Turns the options of a plan and a machine into a forecast, or into the reason why there is none.
// Nothing here prints.
namespace terrace {

// How much is asked of a plan.
enum class PlanEffort : std::uint8_t {
  // As a training would plan. A step that does not fit is refused with the changes that help.
  kExplained,
  // The same, but a refusal says only what is lacking.
  kBrief,
  // For comparisons of many plans: evaluation is left out, and the prefetch distance is the usual
  // one instead of the best. Steps may be a little slower than in a training.
  kQuick,
};

// A training on nodes of a machine: its ranks, and the plans of their steps.
class PlannedRun {
 public:
  // Throws ConfigError for options that contradict each other, the model or the machine.
  PlannedRun(const PlanOptions& options, const Machine& machine, PlanEffort effort);

  // Returns the machine under the power cap of the options, if they have one.
  const Machine& machine() const { return machine_; }
  const MeshShape& mesh() const { return mesh_; }
  const TrainOptions& train() const { return train_; }
  const TierBudgets& budgets() const { return engine_.budgets; }
  RankSetting rank_setting() const;
  std::int64_t tokens_per_step() const;

  // Returns the sizes and costs of the step of a rank in this pipeline stage.
  StepModel stage_model(int stage) const;
  // Plans a rank of a pipeline stage. Throws OutOfMemory where its step does not fit.
  TierPlan plan_stage(int stage) const;
  // Plans one rank of every pipeline stage.
  PlannedStages plan_stages() const;
  // Simulates stages that plan_stages() returned, on this run's machine or on one on which the same
  // programs would run. The power cap holds there, too.
  RunForecast forecast(const PlannedStages& stages, const Machine& machine) const;

 private:
  Machine capped(const Machine& machine) const;
  ModelRuntimeOptions engine_of(int stage) const;
  void check_drives_of_node(std::size_t rank_bytes) const;

  const std::optional<PowerCap> cap_;
  const Machine machine_;
  std::int32_t nodes_ = 1;
  std::int32_t ranks_per_node_ = 1;
  TrainOptions train_;
  MeshShape mesh_;
  ModelRuntimeOptions engine_;
};

// Returns the machine that the options name; without a name this machine, as it was measured last.
// Throws ConfigError where it was never measured.
Machine planned_machine(const PlanOptions& options);

// Returns the machine as it is under the power cap of the options, if they have one.
Machine capped_machine(const PlanOptions& options, const Machine& machine);

// Returns the ranks that each node has. Throws ConfigError where a node has fewer devices.
std::int32_t planned_ranks_per_node(const PlanOptions& options, const Machine& machine);

// The forecast of a run, or the reason why there is none.
struct PlanOutcome {
  std::optional<RunForecast> forecast;
  bool lacks_memory = false;  // where there is none: the step does not fit
  bool lacks_figure = false;  // where there is none: the machine's profile lacks a figure
  std::string refusal;        // the reason in one line, without a full stop
};

// Plans and simulates. Catches ConfigError and OutOfMemory.
PlanOutcome try_plan(const PlanOptions& options, const Machine& machine, PlanEffort effort);

}  // namespace terrace
