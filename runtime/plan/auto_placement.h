#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/function_ref.h"
#include "memory/ledger.h"
#include "runtime/model/option_names.h"
#include "runtime/plan/plan_reasons.h"
#include "runtime/step/compile.h"

namespace terrace {

class Footprints;
class SharedPlans;

// Facts about the machine in which a GPU computes the step.
struct GpuSetting {
  std::int32_t update_threads = 1;  // of the host
  double link_bytes_per_s = 0;      // between host and device, each way; 0: unknown
};

// An option of the caller that makes a step smaller when its value is lower. A refusal names it
// only where a lower value helps.
struct Reduction {
  Option option = Option::kThreads;
  std::int64_t value = 1;        // the present value
  std::int64_t multiple_of = 1;  // a refusal names only multiples of this
  std::int64_t least = 1;        // a refusal names no value below this
  // Returns the step with a lower value. Called only where a step is refused.
  std::function<StepModel(std::int64_t value)> model_with;
};

// The step shared by more tensor-parallel ranks.
struct TensorDivision {
  std::int32_t ranks = 1;
  // Called only where a step is refused.
  std::function<StepModel()> model;
};

// The most host memory that a budget can name here, for refusals: a larger one would be refused.
struct HostCapacity {
  std::size_t bytes = SIZE_MAX;
  std::string reason;  // "the memory limit of the cgroup"
  std::string remedy;  // the advice then: "raise that limit first"

  // Returns a remark, in brackets, for a budget that is larger; else nothing.
  std::string beyond(std::size_t budget_bytes) const;
};

// The choices that the user has fixed. Everything that is unset is chosen.
struct PlacementRequest {
  ByStateClass<std::optional<Tier>> homes;
  std::optional<bool> recompute;
  std::optional<MicroBatchOrder> order;
  bool has_backward = true;            // see StepPolicy
  bool updates_wait_for_norm = true;   // see StepPolicy
  bool reduces_micro_batches = false;  // see StepPolicy
  PipelineSchedule pipeline_schedule = PipelineSchedule::k1F1B;
  std::int32_t micro_batches = 1;
  std::optional<std::int32_t> lookahead;
  // The number of first units whose updates are deferred (see defer_first_updates()). Where updates
  // wait for the norm, all are deferred, whatever this says.
  std::optional<std::int32_t> deferred_units;
  bool unified = true;
  bool has_nvme = false;
  // The part of the elements that is updated on the device although their optimizer state is not at
  // home there, 0 to 1 (runtime/plan/update_split.h). Unset: chosen where a GPU computes, else
  // none. Not in unified mode.
  std::optional<double> streamed_updates;
  // The facts that choices depend on where a GPU computes. None: the device is made of processors
  // of the host. Not in unified mode.
  std::optional<GpuSetting> gpu;
  // For refusals: the names of options; the request in words; the values that may be lowered; the
  // ways to divide units; the memory that the host has.
  OptionNames name_of_option = field_of_option;
  std::string asked;
  std::vector<Reduction> reductions;
  std::vector<TensorDivision> tensor_divisions;
  HostCapacity host_capacity = {};
  // Whether the caller only asks if the step fits. Then nothing is tuned or verified, the program
  // has no edges and may differ from the program of a run, and a refusal gives no reasons.
  bool is_trial = false;
  // Whether a refusal says what would help. That takes longer to find than a plan.
  bool explains_refusal = true;
  // The knowledge that trials of the same model and request with different budgets share. Null:
  // each plan begins anew.
  std::shared_ptr<Footprints> footprints;
};

struct StepPlan {
  StepPolicy policy;
  Program program;
  Ledger ledger;
  PlanReasons reasons = {};  // of a plan that is not a trial
};

// Returns the option that sets a tier's budget, for messages.
Option budget_option(Tier tier);

Ledger ledger_of(const Program& program, const TierBudgets& budgets);

// Chooses a home for every state, fastest tier first, so that the program fits. It starts with
// everything in the compute tier and gives way state by state, no further than needed; the states
// that cost least elsewhere go first. Compiles and verifies. If no plan fits, throws OutOfMemory
// with the ledger of the smallest program there is. Its remedy names the budgets that are enough,
// and each other change that was tried and found to make the step fit, or noticeably smaller.
// `shared` has the plans of the other ranks of this process, if there are any.
StepPlan plan_step(const StepModel& model, const PlacementRequest& request,
                   const TierBudgets& budgets, SharedPlans* shared = nullptr);

// Returns the first plan that `accepts` takes among the plans that keep and prefetch the least. If
// such a plan fits a budget, it fits every larger one. Returns none if `accepts` takes none, or
// none fits. The plan is verified, but not tuned.
std::optional<StepPlan> plan_least_step(const StepModel& model, const PlacementRequest& request,
                                        const TierBudgets& budgets,
                                        FunctionRef<bool(StepPlan&)> accepts);

// Returns the ledger of the first of these plans that fits, in a fraction of the time; none if no
// plan fits. It has no accounts, and no more than the live bytes of a tier without a budget.
std::optional<Ledger> ledger_of_least_step(const StepModel& model, const PlacementRequest& request,
                                           const TierBudgets& budgets);

}  // namespace terrace
