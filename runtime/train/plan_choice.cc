#include "runtime/train/plan_choice.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <sstream>

#include "runtime/config/train_config.h"
#include "runtime/config/train_flags.h"

namespace terrace {
namespace {

constexpr auto kPlacementNames =
    std::to_array<std::string_view>({"auto", "device", "host", "nvme"});

// The flags that say what a plan prints. A training does not take them.
constexpr auto kOfPlan = std::to_array<std::string_view>({"json", "dry-run", "explain"});

// Returns the names of the flags that a choice sets away from their defaults, and of those that a
// reader of the file looks for.
std::vector<std::string_view> chosen_flags(const PlanOptions& options, const PlanChoice& choice) {
  std::vector<std::string_view> flags = {"micro-batch-size", "gradient-accumulation-steps",
                                         "zero-stage", "tensor-parallel", "pipeline-parallel"};
  if (choice.schedule != PipelineSchedule::k1F1B) flags.emplace_back("pipeline-schedule");
  if (choice.virtual_stages > 1) flags.emplace_back("virtual-stages");
  if (!choice.stage_speeds.empty()) flags.emplace_back("stage-speeds");
  if (choice.recompute != RecomputeChoice::kAuto) flags.emplace_back("recompute");
  if (choice.order != OrderChoice::kAuto) flags.emplace_back("micro-batch-order");
  for (const StateClassInfo& info : kStateClasses) {
    if (choice.places[info.state] != Placement::kAuto) flags.push_back(place_flag(info.state));
  }
  if (options.train.ranks.local_ranks > 1) flags.emplace_back("local-ranks");
  return flags;
}

}  // namespace

PlanOptions with_choice(const PlanOptions& options, const PlanChoice& choice) {
  PlanOptions chosen = options;
  TrainOptions& train = chosen.train;
  chosen.ranks_per_node = choice.ranks_per_node;
  train.batch.global.reset();
  train.batch.micro_batch_size = choice.micro_batch_size;
  train.batch.gradient_accumulation_steps = choice.micro_batches;
  train.step.tensor_parallel = choice.tensor;
  train.step.pipeline_parallel = choice.pipeline;
  train.step.zero_stage = choice.zero_stage;
  train.step.pipeline_schedule = choice.schedule;
  const bool is_interleaved = choice.schedule == PipelineSchedule::kInterleaved;
  train.step.virtual_stages.reset();
  if (is_interleaved) train.step.virtual_stages = choice.virtual_stages;
  train.step.stage_speeds = choice.stage_speeds;
  train.step.recompute = choice.recompute;
  train.step.micro_batch_order = choice.order;
  train.tiers.places = choice.places;
  return chosen;
}

std::string describe(const PlanChoice& choice) {
  std::string text = fmt::format("data {}", choice.data);
  if (choice.tensor > 1) text += fmt::format(" x tensor {}", choice.tensor);
  if (choice.pipeline > 1) text += fmt::format(" x stages {}", choice.pipeline);
  text += fmt::format(", zero {}, batch {} x {}", choice.zero_stage, choice.micro_batch_size,
                      choice.micro_batches);
  if (choice.schedule == PipelineSchedule::kGpipe) text += ", gpipe";
  if (choice.virtual_stages > 1) text += fmt::format(", interleaved {}", choice.virtual_stages);
  if (choice.recompute == RecomputeChoice::kNone) text += ", recompute none";
  if (choice.recompute == RecomputeChoice::kFull) text += ", recompute full";
  if (choice.order == OrderChoice::kLayerMajor) text += ", layer-major";
  if (choice.order == OrderChoice::kMicroBatchMajor) text += ", micro-batch-major";
  for (const StateClassInfo& info : kStateClasses) {
    const Placement place = choice.places[info.state];
    if (place == Placement::kAuto) continue;
    text +=
        fmt::format(", {} on {}", info.name, kPlacementNames.at(static_cast<std::size_t>(place)));
  }
  return text;
}

std::string choice_toml(const PlanOptions& options, const PlanChoice& choice,
                        std::string_view about) {
  PlanOptions chosen = with_choice(options, choice);
  if (choice.ranks_are_threads) chosen.train.ranks.local_ranks = choice.ranks_per_node;
  std::vector<std::string_view> flags = chosen_flags(chosen, choice);
  if (chosen.train.precision == Precision::kFp16) {  // a training has it on GPUs only
    chosen.train.tiers.device.kind = DeviceKind::kCuda;
    flags.emplace_back("device");
  }
  for (const std::string_view flag : options.given) {
    if (std::ranges::count(kOfPlan, flag) == 0) flags.push_back(flag);
  }
  std::string text;
  std::istringstream lines{std::string(about)};
  for (std::string line; std::getline(lines, line);) text += "# " + line + "\n";
  return text + "\n" + to_toml(with_absolute_paths(chosen.train), flags);
}

}  // namespace terrace
