#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "kernels/wire_forms.h"
#include "memory/ledger.h"
#include "parallel/zero_partition.h"
#include "runtime/config/plan_options.h"
#include "runtime/machine/op_estimates.h"
#include "runtime/machine/power_cap.h"
#include "runtime/machine/rank_profile.h"
#include "runtime/plan/step_flops.h"

// Forecasts of a run on a machine, from the plans of its pipeline stages.
namespace terrace {

// One rank of a pipeline stage. All ranks of a stage have programs of this form.
struct StageForecast {
  double speed = 1;        // of its slowest device, as a share of the machine's figures
  std::int32_t units = 0;  // embedding, layers and head
  Ledger ledger;
  StepFlops flops;
  std::array<double, kLaneCount> bytes{};       // that each lane moves in a step
  double step_s = 0;                            // if nothing waits for other stages
  std::array<double, kLaneCount> busy_share{};  // of the run's step
  Lane bottleneck = Lane::kCompute;
};

struct RunForecast {
  MeshShape mesh;
  int zero_stage = 0;
  ZeroPartition zero_partition = ZeroPartition::kAll;
  WireForms wire;
  std::int32_t nodes = 1;
  std::int32_t ranks_per_node = 1;
  std::int64_t tokens_per_step = 0;
  double step_s = 0;
  double bubble_share = 0;  // of the compute lanes' time, over all stages
  std::size_t slowest = 0;  // the stage with the largest step_s
  double model_flops = 0;   // of a step, over all ranks, as a model FLOPs utilisation counts them
  double peak_flops_per_s = 0;  // of all ranks
  std::optional<PowerCap> power_cap;
  std::vector<StageForecast> stages;

  double tokens_per_s() const { return static_cast<double>(tokens_per_step) / step_s; }
  double mfu() const { return model_flops / (step_s * peak_flops_per_s); }
  // Returns the ledger of the largest peaks over the stages, tier by tier.
  Ledger ledger() const;
  // Returns the bytes of a lane over all ranks.
  double bytes_of(Lane lane) const;
  // Returns whether some stages run at a lower speed than others.
  bool has_unequal_stages() const;
};

// The plan of one rank of a pipeline stage, as far as a forecast needs it.
struct PlannedStage {
  Program program;
  KernelsOfOps kernels;
  Ledger ledger;
  StepFlops flops;
  std::int32_t units = 0;  // that the stage has
};

// The plans of one rank of every pipeline stage.
using PlannedStages = std::vector<PlannedStage>;

// Simulates a step of all stages, each at the speed of its slowest device. `nodes` and the tokens
// are for the result alone.
RunForecast forecast_run(const PlannedStages& stages, const Machine& machine,
                         const RankSetting& setting);

// The time, energy and money that a whole run takes. A number is unset if no figure gives it.
struct RunCost {
  double tokens = 0;
  double seconds = 0;
  std::optional<double> kilowatt_hours;
  std::optional<double> price;
  std::optional<double> carbon_kg;
  double written_bytes = 0;  // to the drives of all nodes, without checkpoints
};
RunCost cost_of_run(const RunForecast& forecast, const Machine& machine,
                    const PlanOptions& options);

// Return the forecast as lines for people, and as the document of docs/plan.md.
std::string describe_forecast(const RunForecast& forecast, const RunCost& cost,
                              const Machine& machine);
std::string forecast_json(const RunForecast& forecast, const RunCost& cost, const Machine& machine);

}  // namespace terrace
