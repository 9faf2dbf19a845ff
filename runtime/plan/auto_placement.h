#pragma once

#include <optional>
#include <string>
#include <vector>

#include "memory/ledger.h"
#include "runtime/step/compile.h"

namespace terrace {

class SharedPlans;

// What a GPU computes beside.
struct GpuSetting {
  std::int32_t update_threads = 1;  // of the host
  double link_bytes_per_s = 0;      // between host and device, each way; 0: unknown
};

// What the user fixed; everything unset is chosen.
struct PlacementRequest {
  std::optional<Tier> parameters, gradients, optimizer, activations;
  std::optional<bool> recompute;
  std::optional<MicroBatchOrder> order;
  bool updates_wait_for_norm = true;   // see StepPolicy
  bool reduces_micro_batches = false;  // see StepPolicy
  PipelineSchedule pipeline_schedule = PipelineSchedule::k1F1B;
  std::int32_t micro_batches = 1;
  std::optional<std::int32_t> lookahead;
  bool unified = true;
  bool has_nvme = false;
  // Of the elements whose optimizer state is not at home on the device, what part is updated there
  // all the same, 0 to 1 (runtime/plan/update_split.h). Unset: chosen where a GPU computes, else
  // none. Not in unified mode.
  std::optional<double> streamed_updates;
  // What choices go by where a GPU computes; none: the device is processors of the host. Not in
  // unified mode.
  std::optional<GpuSetting> gpu;
};

struct StepPlan {
  StepPolicy policy;
  Program program;
  Ledger ledger;
};

Ledger ledger_of(const Program& program, const TierBudgets& budgets);

// Chooses a home for every state, fastest tier first, so that the program fits: starts with
// everything in the compute tier and gives way unit by unit, the states that cost least to have
// elsewhere first, no further than needed. Compiles and verifies. Throws OutOfMemory with the
// ledger of the smallest program there is, and the cheapest ways to make it fit, if none fits.
// `shared`: the plans of the other ranks of this process, if there are any.
StepPlan plan_step(const StepModel& model, const PlacementRequest& request,
                   const TierBudgets& budgets, SharedPlans* shared = nullptr);

}  // namespace terrace
