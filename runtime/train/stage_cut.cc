#include "runtime/train/stage_cut.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <optional>
#include <utility>

#include "base/error.h"
#include "runtime/checkpoint/checkpoint.h"
#include "runtime/config/train_config.h"
#include "runtime/train/rank_group.h"
#include "runtime/train/resume.h"
#include "runtime/train/run_record.h"
#include "runtime/train/train_setup.h"

namespace terrace {
namespace {

// The steps after which the model is cut anew. The first of them is not measured.
constexpr std::int64_t kMeasuredSteps = 8;

void check_stages_to_measure(const TrainOptions& options) {
  if (options.step.pipeline_parallel > 1) return;
  throw ConfigError("--stage-speeds auto: there is only one pipeline stage, which has all layers",
                    "leave it out, or give --pipeline-parallel N");
}

// Returns the speeds that an earlier part of the run has measured; nothing if there are none.
std::vector<double> recorded_speeds(const RunOptions& run, Log& log) {
  std::optional<std::string> checkpoint;
  if (run.resume == "auto" && !run.run_dir.empty()) checkpoint = latest_checkpoint(run.run_dir);
  if (run.resume != "auto" && run.resume != "none") checkpoint = run.resume;
  if (!checkpoint.has_value()) return {};
  const std::optional<TrainOptions> before = options_of_run(*checkpoint, log);
  return before.has_value() ? before->step.stage_speeds : std::vector<double>();
}

TrainCommand with_speeds(TrainCommand command, std::vector<double> speeds) {
  command.options.step.stage_speeds = std::move(speeds);
  command.options.step.measures_stage_speeds = false;
  command.cut_after_step.reset();
  return command;
}

// Returns what the first rank says, on all ranks: it sees the run's files.
std::vector<double> of_first_rank(Communicator* world, std::vector<double> numbers) {
  if (world == nullptr) return numbers;
  std::int32_t count = static_cast<std::int32_t>(numbers.size());
  world->broadcast(view(std::span(&count, 1)), 0, {});
  numbers.resize(static_cast<std::size_t>(count));
  if (count > 0) world->broadcast(view(std::span(numbers)), 0, {});
  return numbers;
}

}  // namespace

std::int64_t TrainCommand::last_step(std::int64_t total_steps) const {
  return std::min({total_steps, options.batch.stop_after_step.value_or(total_steps),
                   cut_after_step.value_or(total_steps)});
}

StageWork work_of_stage(const TierPlan& plan, const StepObserver& observer) {
  double flops = 0;
  for (std::int32_t u = 0; u <= plan.model.last_unit(); ++u) {
    const UnitModel& unit = plan.model.units.at(static_cast<std::size_t>(u));
    if (plan.model.has_unit(u)) flops += unit.forward_flops + unit.backward_flops;
  }
  return {flops * plan.training.program.micro_batches, observer.measured_steps(),
          observer.work_s()};
}

std::vector<double> measured_speeds(std::span<const StageWork> work, const MeshShape& shape) {
  std::vector<double> speeds(static_cast<std::size_t>(shape.pipeline), 0.0);
  for (std::size_t rank = 0; rank < work.size(); ++rank) {
    const StageWork& of = work[rank];
    if (of.steps == 0 || of.work_s <= 0 || of.flops <= 0) return {};
    const double speed = of.flops * static_cast<double>(of.steps) / of.work_s;
    double& slowest =
        speeds.at(static_cast<std::size_t>(position_of(shape, static_cast<int>(rank)).pipeline));
    slowest = slowest == 0 ? speed : std::min(slowest, speed);
  }
  constexpr double kParts = 1000;
  const double fastest = std::ranges::max(speeds);
  for (double& speed : speeds) {
    speed = std::max(1.0, std::round(speed / fastest * kParts)) / kParts;
  }
  return speeds;
}

TrainOutcome train_in_parts(const TrainCommand& command, Communicator* world, TrainConsole& console,
                            Log& log, FunctionRef<TrainedPart(const TrainCommand&)> train_part) {
  const TrainOptions& options = command.options;
  if (!options.step.measures_stage_speeds) return train_part(command).outcome;
  check_stages_to_measure(options);
  if (options.run.dry_run) return train_part(with_speeds(command, {})).outcome;
  std::vector<double> recorded = of_first_rank(world, recorded_speeds(options.run, log));
  if (std::cmp_equal(recorded.size(), options.step.pipeline_parallel)) {
    return train_part(with_speeds(command, std::move(recorded))).outcome;
  }
  const std::int64_t done = resumed_progress(options.run.resume, options.run.run_dir).step;
  TrainCommand first = command;
  first.cut_after_step = static_cast<std::int64_t>(
      of_first_rank(world, {static_cast<double>(done + kMeasuredSteps)}).front());
  if (options.batch.stop_after_step.value_or(*first.cut_after_step + 1) <= *first.cut_after_step) {
    return train_part(command).outcome;
  }
  const TrainedPart part = train_part(first);
  const bool is_at_cut = part.done_steps == *first.cut_after_step;
  if (part.outcome != TrainOutcome::kStoppedAsAsked || !is_at_cut) return part.outcome;
  const MeshShape shape = mesh_of(world == nullptr ? 1 : world->size(),
                                  options.step.tensor_parallel, options.step.pipeline_parallel);
  const std::vector<double> speeds = measured_speeds(of_all_ranks(*world, part.work), shape);
  console.say(speeds.empty()
                  ? std::string("the stages worked for too short a time to be measured")
                  : fmt::format("measured: the pipeline stages work at the relative speeds {}; "
                                "the model is cut by them, and the run goes on",
                                fmt::join(speeds, ", ")));
  TrainCommand second = with_speeds(command, speeds);
  second.options.run.run_dir = part.run_dir;
  second.options.run.resume = "auto";
  return train_part(second).outcome;
}

}  // namespace terrace
