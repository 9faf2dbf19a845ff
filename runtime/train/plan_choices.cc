#include "runtime/train/plan_choices.h"

#include <algorithm>

#include "runtime/config/train_config.h"
#include "runtime/config/train_flags.h"
#include "runtime/machine/device_speeds.h"
#include "runtime/train/plan_forecast.h"
#include "runtime/train/train_setup.h"

namespace terrace {
namespace {

constexpr std::int64_t kMicroBatchMost = 64;
constexpr std::int32_t kStagesMost = 256;
constexpr std::int32_t kThreadedRanksMost = 16;

std::vector<std::int32_t> divisors(std::int64_t number, std::int64_t most) {
  std::vector<std::int32_t> all;
  for (std::int64_t d = 1; d <= std::min(number, most); ++d) {
    if (number % d == 0) all.push_back(static_cast<std::int32_t>(d));
  }
  return all;
}

}  // namespace

PlanChoices::PlanChoices(const PlanOptions& options, const Machine& machine)
    : options_(options), machine_(machine) {
  TrainOptions train = options.train;
  const int ranks = options.nodes * planned_ranks_per_node(options, machine);
  settle_batch(train, ranks);
  const MeshShape mesh = mesh_for(train, ranks, planned_ranks_per_node(options, machine));
  global_samples_ =
      train.batch.micro_batch_size * train.batch.gradient_accumulation_steps * mesh.data;
}

bool PlanChoices::is_given(std::string_view flag) const {
  return std::ranges::count(options_.given, flag) != 0;
}

bool PlanChoices::has_given_recompute() const {
  return is_given("recompute") && options_.train.step.recompute != RecomputeChoice::kAuto;
}

bool PlanChoices::has_given_order() const {
  return is_given("micro-batch-order") &&
         options_.train.step.micro_batch_order != OrderChoice::kAuto;
}

bool PlanChoices::has_given_place() const {
  return std::ranges::any_of(kStateClasses, [&](const StateClassInfo& info) {
    return is_given(place_flag(info.state)) &&
           options_.train.tiers.places[info.state] != Placement::kAuto;
  });
}

// Ranks that are threads share the processors, so their number is a choice, too.
std::vector<std::int32_t> PlanChoices::ranks_of_nodes() const {
  const std::int32_t planned = planned_ranks_per_node(options_, machine_);
  const bool is_fixed =
      machine_.devices > 0 || options_.ranks_per_node.has_value() || is_given("local-ranks");
  if (is_fixed) return {planned};
  const double cores = machine_.value_or(MachineFigure::kCores, 1);
  std::vector<std::int32_t> ranks;
  for (std::int32_t r = 1; r <= kThreadedRanksMost && r <= cores; r *= 2) ranks.push_back(r);
  return ranks.empty() ? std::vector{planned} : ranks;
}

std::vector<PlanChoice> PlanChoices::divisions() const {
  PlanChoice choice;
  const StepOptions& step = options_.train.step;
  choice.schedule = step.pipeline_schedule;
  const bool is_interleaved = choice.schedule == PipelineSchedule::kInterleaved;
  choice.virtual_stages = step.virtual_stages.value_or(is_interleaved ? 2 : 1);
  choice.recompute = step.recompute;
  choice.order = step.micro_batch_order;
  choice.places = options_.train.tiers.places;
  std::vector<PlanChoice> choices;
  for (const std::int32_t ranks : ranks_of_nodes()) {
    choice.ranks_per_node = ranks;
    choice.ranks_are_threads = options_.nodes == 1;
    add_meshes(choice, choices);
  }
  return choices;
}

void PlanChoices::add_meshes(const PlanChoice& of_nodes, std::vector<PlanChoice>& choices) const {
  const std::int32_t ranks = options_.nodes * of_nodes.ranks_per_node;
  const StepOptions& step = options_.train.step;
  PlanChoice choice = of_nodes;
  const bool has_tensor = is_given("tensor-parallel");
  // One speed is given for each stage, so the number of stages is given, too.
  const bool has_pipeline = is_given("pipeline-parallel") || is_given("stage-speeds");
  for (const std::int32_t tensor : divisors(ranks, has_tensor ? ranks : of_nodes.ranks_per_node)) {
    const bool fits_nodes = of_nodes.ranks_per_node % tensor == 0;
    const bool is_wanted = has_tensor ? tensor == step.tensor_parallel : fits_nodes;
    if (!is_wanted) continue;
    for (const std::int32_t pipeline :
         divisors(ranks / tensor, has_pipeline ? ranks : kStagesMost)) {
      if (has_pipeline && pipeline != step.pipeline_parallel) continue;
      choice.tensor = tensor;
      choice.pipeline = pipeline;
      choice.data = ranks / tensor / pipeline;
      choice.stage_speeds = stage_speeds_of(choice);
      if (global_samples_ % choice.data == 0) add_batches(choice, choices);
    }
  }
}

std::vector<double> PlanChoices::stage_speeds_of(const PlanChoice& mesh) const {
  if (is_given("stage-speeds")) return options_.train.step.stage_speeds;
  const MeshShape shape{mesh.data, mesh.tensor, mesh.pipeline};
  return unequal_stage_speeds(machine_, {.mesh = shape, .ranks_on_node = mesh.ranks_per_node});
}

void PlanChoices::add_batches(const PlanChoice& mesh, std::vector<PlanChoice>& choices) const {
  const std::int64_t samples = global_samples_ / mesh.data;
  PlanChoice choice = mesh;
  for (const std::int32_t size : divisors(samples, kMicroBatchMost)) {
    choice.micro_batch_size = size;
    choice.micro_batches = samples / size;
    for (const std::int32_t stage : zero_stages(choice)) {
      choice.zero_stage = stage;
      choices.push_back(choice);
    }
  }
}

std::vector<std::int32_t> PlanChoices::zero_stages(const PlanChoice& choice) const {
  if (is_given("zero-stage")) return {options_.train.step.zero_stage.value_or(0)};
  if (choice.data == 1) return {0};
  return {1, 2, 3};
}

bool PlanChoices::allows(const PlanChoice& choice) const {
  const std::vector<std::int32_t> stages = zero_stages(choice);
  return std::ranges::find(stages, choice.zero_stage) != stages.end();
}

std::vector<PlanChoice> PlanChoices::neighbours(const PlanChoice& choice,
                                                const MemoryPressure& pressure) const {
  std::vector<PlanChoice> others;
  PlanChoice other = choice;
  for (const std::int32_t stage : zero_stages(choice)) {
    other.zero_stage = stage;
    if (other != choice) others.push_back(other);
  }
  const bool has_orders = choice.pipeline == 1 && choice.micro_batches > 1;
  if (!has_given_order() && has_orders) {
    other = choice;
    for (const OrderChoice order : {OrderChoice::kLayerMajor, OrderChoice::kMicroBatchMajor}) {
      other.order = order;
      if (other != choice) others.push_back(other);
    }
  }
  add_schedules(choice, others);
  add_batch_neighbours(choice, others);
  if (pressure.recomputes || pressure.moves_state) add_memory_neighbours(choice, others);
  return others;
}

// A planner that lacks memory computes forwards again, and then moves state. It may be quicker to
// move the optimizer state, or activations, and compute nothing again.
void PlanChoices::add_memory_neighbours(const PlanChoice& choice,
                                        std::vector<PlanChoice>& choices) const {
  const auto add = [&](const PlanChoice& other) {
    if (other != choice) choices.push_back(other);
  };
  PlanChoice other = choice;
  if (!has_given_recompute()) {
    for (const RecomputeChoice recompute : {RecomputeChoice::kNone, RecomputeChoice::kFull}) {
      other.recompute = recompute;
      add(other);
    }
  }
  if (machine_.devices == 0 || has_given_place()) return;
  for (const StateClass state : {StateClass::kOptimizer, StateClass::kActivations}) {
    other = choice;
    other.places[state] = Placement::kHost;
    add(other);
  }
}

void PlanChoices::add_schedules(const PlanChoice& choice, std::vector<PlanChoice>& choices) const {
  if (choice.pipeline == 1 || is_given("pipeline-schedule")) return;
  PlanChoice other = choice;
  other.virtual_stages = 1;
  for (const PipelineSchedule schedule : {PipelineSchedule::k1F1B, PipelineSchedule::kGpipe}) {
    other.schedule = schedule;
    if (other != choice) choices.push_back(other);
  }
  if (choice.micro_batches % choice.pipeline != 0) return;
  other.schedule = PipelineSchedule::kInterleaved;
  for (const std::int32_t pieces : {2, 4}) {
    other.virtual_stages = pieces;
    if (other != choice) choices.push_back(other);
  }
}

void PlanChoices::add_batch_neighbours(const PlanChoice& choice,
                                       std::vector<PlanChoice>& choices) const {
  PlanChoice other = choice;
  if (choice.micro_batches % 2 == 0) {
    other.micro_batch_size = choice.micro_batch_size * 2;
    other.micro_batches = choice.micro_batches / 2;
    choices.push_back(other);
  }
  if (choice.micro_batch_size % 2 == 0) {
    other.micro_batch_size = choice.micro_batch_size / 2;
    other.micro_batches = choice.micro_batches * 2;
    choices.push_back(other);
  }
}

}  // namespace terrace
