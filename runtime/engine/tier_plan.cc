#include "runtime/engine/tier_plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <string>
#include <utility>

#include "base/error.h"
#include "base/usage_error.h"
#include "runtime/engine/noise_check.h"
#include "runtime/engine/unit_check.h"
#include "runtime/engine/wire_check.h"
#include "runtime/step/task_order.h"
#include "runtime/step/verify.h"
#include "runtime/step/verify_stages.h"

namespace terrace {
namespace {

ZeroSharding sharding_of(const TierRuntimeOptions& options) {
  const MeshShape& shape = options.ranks.shape;
  return {options.zero_stage, shape.data, options.ranks.position.data, shape.islands,
          options.zero_partition};
}

// Cuts the model into pieces that take about equally long.
PipelineCut cut_of(const TierRuntimeOptions& options, const StepModel& model) {
  PipelineCut cut;
  cut.stages = options.ranks.shape.pipeline;
  cut.stage = options.ranks.position.pipeline;
  if (cut.stages == 1) return cut;
  cut.virtual_stages = options.virtual_stages;
  std::vector<double> costs;
  for (const UnitModel& unit : model.units) {
    costs.push_back(unit.forward_flops + unit.backward_flops);
  }
  cut.piece_begins = balance_stages(costs, cut.pieces(), options.stage_speeds);
  return cut;
}

// Returns the size of the largest chunk of which all ranks can have the same number of whole
// blocks.
std::int64_t chunk_elements_for(const TierRuntimeOptions& options, std::int32_t ranks) {
  const std::int64_t grain = ranks * kBlockElements;
  const std::int64_t elements = options.chunk_elements / grain * grain;
  if (elements == 0) {
    throw ConfigError(fmt::format("there are {} data-parallel ranks but only {} blocks in a chunk",
                                  ranks, options.chunk_elements / kBlockElements),
                      "train with fewer ranks");
  }
  return elements;
}

}  // namespace

StateFormat state_format_of(DType type, const OptimizerOptions& optimizer, std::int32_t rule) {
  const FurtherRule of = optimizer.rule_of(rule);
  StateFormat format;
  const bool splits = type == DType::kBF16 && optimizer.splits_bf16_masters;
  format.master = type == DType::kF32 ? MasterForm::kParameter
                  : splits            ? MasterForm::kSplit
                                      : MasterForm::kFp32;
  format.slot_form = of.slot_form;
  format.slot_count = of.rule->slots.size();
  return format;
}

std::vector<StateFormat> formats_of_groups(const ComputeModel& model,
                                           const OptimizerOptions& optimizer) {
  const bool are_alike = std::ranges::none_of(model.groups, [](const ParameterGroup& group) {
    return group.type.has_value() || group.rule != 0;
  });
  std::vector<StateFormat> formats;
  if (are_alike) return formats;
  for (const ParameterGroup& group : model.groups) {
    const DType type = group.type.value_or(model.compute_type);
    formats.push_back(state_format_of(type, optimizer, group.rule));
  }
  return formats;
}

StepModel step_model_of(const ComputeModel& units, const TierRuntimeOptions& options) {
  StepModel model(units);
  model.zero = sharding_of(options);
  model.pipeline = cut_of(options, model);
  model.updates_meet_on_host = exchange_of(options.backend) != nullptr;
  model.chunk_elements = chunk_elements_for(options, model.zero.ranks);
  model.state_format = state_format_of(model.compute_type, options.optimizer);
  model.formats_of_groups = formats_of_groups(model, options.optimizer);
  model.gradient_type = options.gradient_type;
  model.scales_loss = model.compute_type == DType::kF16;
  model.tasks = options.schedule;
  model.measures_noise = options.measures_gradient_noise && options.trains;
  check_noise(model, options);
  if (options.trains) model.wire = options.wire;
  check_wire(model, options);
  return model;
}

namespace {

// Compiles the evaluation that shares memory with the training of the plan.
void add_evaluation(TierPlan& plan, const TierRuntimeOptions& options, bool is_trial) {
  plan.ledger = plan.training.ledger;
  if (!options.evaluates) return;
  if (!options.trains) {
    plan.evaluation = plan.training.program;
    return;
  }
  StepPolicy evaluation = plan.training.policy;
  evaluation.has_backward = false;
  const Program* const base = &plan.training.program;
  plan.evaluation = is_trial ? place_step(plan.model, evaluation, options.budgets, base)
                             : compile_step(plan.model, evaluation, options.budgets, base);
  if (!is_trial) {
    const std::vector<std::string> problems = verify(plan.evaluation);
    if (!problems.empty()) TERRACE_CHECK_EQ(problems.front(), std::string());
  }
  for (const Tier tier : {Tier::kDevice, Tier::kHost}) {
    plan.ledger[tier].peak_bytes = arena_bytes(plan, tier);
  }
}

// Plans with the programs of training and evaluation that need the least memory. Returns whether
// one fits; the plan is then set.
bool plan_least(TierPlan& plan, const PlacementRequest& placement,
                const TierRuntimeOptions& options) {
  const auto accepts = [&](StepPlan& training) {
    std::swap(plan.training, training);
    add_evaluation(plan, options, placement.is_trial);
    std::swap(plan.training, training);
    return fits(plan.ledger);
  };
  std::optional<StepPlan> found = plan_least_step(plan.model, placement, options.budgets, accepts);
  if (!found.has_value()) return false;
  plan.training = std::move(*found);
  return true;
}

// Plans with the chunks that the model has.
TierPlan plan_chunks(StepModel model, const TierRuntimeOptions& options) {
  TierPlan plan;
  plan.model = std::move(model);
  PlacementRequest placement = options.placement;
  placement.pipeline_schedule = options.pipeline_schedule;
  placement.has_backward = options.trains;
  placement.updates_wait_for_norm = options.optimizer.max_grad_norm > 0 || plan.model.scales_loss;
  if (options.optimizer.can_skip_steps && !placement.updates_wait_for_norm) {
    throw UsageError(
        "can_skip_steps: a step cannot be skipped if its updates do not wait for the norm",
        "set max_grad_norm, to the largest float if nothing should be clipped");
  }
  if (!plan.model.tasks.empty()) placement.order = order_of_tasks(plan.model);
  // A backend that has memory of its own is a GPU.
  if (options.backend != nullptr && !placement.unified) {
    if (!placement.gpu.has_value()) placement.gpu.emplace();
    placement.gpu->update_threads = options.update_threads;
  }
  // A trial takes any plan that fits, and the plans that need the least are the quickest to find.
  if (placement.is_trial && !options.evaluates) {
    const auto ledger = ledger_of_least_step(plan.model, placement, options.budgets);
    if (ledger.has_value()) {
      plan.ledger = *ledger;
      return plan;
    }
  }
  if (placement.is_trial && options.evaluates && plan_least(plan, placement, options)) return plan;
  plan.training = plan_step(plan.model, placement, options.budgets, options.shared_plans);
  add_evaluation(plan, options, placement.is_trial);
  if (placement.is_trial || fits(plan.ledger)) return plan;
  // Evaluation may find no room between the buffers of a tuned training step.
  TierPlan least;
  least.model = plan.model;
  return plan_least(least, placement, options) ? least : plan;
}

// Plans with larger chunks where many data-parallel ranks divide them. Otherwise a collective would
// wait longer for the other ranks than for its bytes. Returns nothing where chunks keep their size,
// and where larger chunks do not fit. The stages of a pipeline must have chunks of one size, and a
// stage does not know whether larger ones fit the others, so they keep it. A trial does, too: what
// fits with the usual chunks fits.
std::optional<TierPlan> plan_larger_chunks(const StepModel& model,
                                           const TierRuntimeOptions& options) {
  constexpr std::int32_t kRanksOfChunk = 64;  // that chunks of the usual size suffice for
  constexpr std::int32_t kTimesMost = 16;     // a collective has less than 2 GiB, MPI's limit
  const std::int32_t times =
      std::min(kTimesMost, (model.zero.ranks + kRanksOfChunk - 1) / kRanksOfChunk);
  const bool keeps_chunks =
      options.has_fixed_chunks || model.pipeline.stages > 1 || options.placement.is_trial;
  if (times == 1 || keeps_chunks) return std::nullopt;
  StepModel larger = model;
  larger.chunk_elements *= times;
  TierRuntimeOptions brief = options;
  brief.placement.explains_refusal = false;
  brief.placement.footprints = nullptr;  // they are of the usual chunks
  try {
    TierPlan plan = plan_chunks(std::move(larger), brief);
    if (fits(plan.ledger)) return plan;
  } catch (const OutOfMemory&) {
    return std::nullopt;
  }
  return std::nullopt;
}

}  // namespace

TierPlan plan_step_model(StepModel model, const TierRuntimeOptions& options) {
  if (std::optional<TierPlan> plan = plan_larger_chunks(model, options)) return *std::move(plan);
  return plan_chunks(std::move(model), options);
}

TierPlan plan_tiers(const ComputeModel& units, const TierRuntimeOptions& options) {
  check_units(units, options);
  StepModel model = step_model_of(units, options);
  check_order(model, options.placement.micro_batches);
  TierPlan plan = plan_step_model(std::move(model), options);
  if (!fits(plan.ledger)) {
    throw OutOfMemory(
        "evaluation does not fit beside the training state: " + describe_shortfall(plan.ledger),
        "raise the budget of that tier, or plan without evaluation "
        "(TierRuntimeOptions::evaluates)");
  }
  return plan;
}

std::vector<std::string> problems_of_stages(const StepRanks& ranks, const TierPlan& plan,
                                            FunctionRef<TierPlan(int stage)> plan_of) {
  const int stages = ranks.shape.pipeline;
  if (stages == 1) return {};
  std::vector<TierPlan> others(static_cast<std::size_t>(stages));
  std::vector<const Program*> training;
  std::vector<const Program*> evaluation;
  for (int stage = 0; stage < stages; ++stage) {
    TierPlan& other = others.at(static_cast<std::size_t>(stage));
    const bool is_own = stage == ranks.position.pipeline;
    if (!is_own) other = plan_of(stage);
    const TierPlan& of_stage = is_own ? plan : other;
    training.push_back(&of_stage.training.program);
    evaluation.push_back(&of_stage.evaluation);
  }
  std::vector<std::string> problems = verify_stages(training);
  for (std::string& problem : verify_stages(evaluation)) problems.push_back(std::move(problem));
  return problems;
}

void check_stages(const ComputeModel& units, const TierRuntimeOptions& options,
                  const TierPlan& plan) {
  const auto plan_of = [&](int stage) {
    TierRuntimeOptions other = options;
    other.ranks.position.pipeline = stage;
    return plan_tiers(units, other);
  };
  const std::vector<std::string> problems = problems_of_stages(options.ranks, plan, plan_of);
  if (problems.empty()) return;
  throw UsageError(fmt::format("pipeline stages: {}", problems.front()),
                   "give all stages the same description and options");
}

std::size_t arena_bytes(const TierPlan& plan, Tier tier) {
  return std::max(plan.training.program.use_of(tier).packed_bytes,
                  plan.evaluation.use_of(tier).packed_bytes);
}

std::size_t host_arena_bytes(const TierPlan& plan) {
  constexpr std::size_t kLeast = 4096;
  return std::max(arena_bytes(plan, Tier::kHost), kLeast);
}

std::size_t step_input_bytes(const TierPlan& plan) {
  return plan.model.tokens_bytes * static_cast<std::size_t>(plan.training.program.micro_batches);
}

}  // namespace terrace
