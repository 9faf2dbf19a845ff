#include "runtime/config/accumulation_schedule.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <limits>

#include "base/error.h"
#include "runtime/config/toml_text.h"

namespace terrace {
namespace {

constexpr std::int64_t kMicroBatchesMost = 1'000'000;
constexpr std::string_view kAutomatic = "auto";

// Returns the schedule as phases, also where it is constant.
std::vector<AccumulationPhase> phases_of(const BatchOptions& batch) {
  if (!batch.accumulation_schedule.empty()) return batch.accumulation_schedule;
  return {{.micro_batches = batch.gradient_accumulation_steps, .first_step = 1}};
}

AccumulationPhase read_phase(const FlagValue& value, const std::string& text) {
  const std::size_t at = text.find('@');
  if (at == std::string::npos) {
    value.refuse(fmt::format("'{}' has no @", text),
                 "give numbers of micro-batches, each with its first step: 8@1,16@2001; or auto");
  }
  return {FlagValue(value.where(), {text.substr(0, at)}).integer(1, kMicroBatchesMost),
          FlagValue(value.where(), {text.substr(at + 1)}).integer(1)};
}

std::string schedule_text(const std::vector<AccumulationPhase>& schedule) {
  std::vector<std::string> phases;
  for (const AccumulationPhase& phase : schedule) {
    phases.push_back(fmt::format("{}@{}", phase.micro_batches, phase.first_step));
  }
  return fmt::format("{}", fmt::join(phases, ","));
}

// Calls `visit` with each phase and the number of steps that it has until the next one.
template <typename Visit>
void for_each_phase(const BatchOptions& batch, Visit visit) {
  const std::vector<AccumulationPhase> phases = phases_of(batch);
  for (std::size_t i = 0; i < phases.size(); ++i) {
    const std::int64_t end =
        i + 1 < phases.size() ? phases[i + 1].first_step : std::numeric_limits<std::int64_t>::max();
    visit(phases[i], end - phases[i].first_step);
  }
}

}  // namespace

void read_accumulation_schedule(const FlagValue& value, BatchOptions& batch) {
  std::vector<AccumulationPhase>& schedule = batch.accumulation_schedule;
  const std::string& text = value.name();
  schedule.clear();
  batch.adapts_accumulation = text == kAutomatic;
  if (batch.adapts_accumulation) return;
  for (std::size_t begin = 0; begin <= text.size();) {
    const std::size_t end = std::min(text.find(',', begin), text.size());
    const AccumulationPhase phase = read_phase(value, text.substr(begin, end - begin));
    if (schedule.empty() && phase.first_step != 1) {
      value.refuse(fmt::format("says nothing about the steps before {}", phase.first_step),
                   "begin with a number for step 1: 8@1");
    }
    if (!schedule.empty() && phase.first_step <= schedule.back().first_step) {
      value.refuse(fmt::format("step {} does not come after step {}", phase.first_step,
                               schedule.back().first_step),
                   "give the steps in rising order");
    }
    schedule.push_back(phase);
    begin = end + 1;
  }
}

std::string accumulation_schedule_toml(const BatchOptions& batch) {
  if (batch.adapts_accumulation) return toml_string(std::string(kAutomatic));
  if (batch.accumulation_schedule.empty()) return {};
  return toml_string(schedule_text(batch.accumulation_schedule));
}

namespace {

void settle_automatic(BatchOptions& batch) {
  if (batch.gradient_accumulation_steps == 1) {
    throw ConfigError("--accumulation-schedule auto may give a step 1 micro-batch at most",
                      "give the largest number as --gradient-accumulation-steps");
  }
  if (batch.max_steps == 0) {
    throw ConfigError(
        "--accumulation-schedule auto without --max-steps: nobody knows before how many samples "
        "the steps will have",
        "give --max-steps in place of --num-train-epochs");
  }
  batch.measures_gradient_noise = true;
}

}  // namespace

void settle_accumulation(TrainOptions& options, FunctionRef<bool(std::string_view flag)> is_given) {
  BatchOptions& batch = options.batch;
  if (batch.accumulation_schedule.empty() && !batch.adapts_accumulation) return;
  if (batch.adapts_accumulation) settle_automatic(batch);
  const std::int64_t most =
      batch.adapts_accumulation
          ? batch.gradient_accumulation_steps
          : std::ranges::max(batch.accumulation_schedule, {}, &AccumulationPhase::micro_batches)
                .micro_batches;
  const std::string schedule = batch.adapts_accumulation
                                   ? std::string(kAutomatic)
                                   : schedule_text(batch.accumulation_schedule);
  if (is_given("gradient-accumulation-steps") && batch.gradient_accumulation_steps != most) {
    throw ConfigError(fmt::format("--accumulation-schedule {} and --gradient-accumulation-steps {} "
                                  "both say how many micro-batches a step has",
                                  schedule, batch.gradient_accumulation_steps),
                      "give one of them");
  }
  if (batch.global.has_value()) {
    throw ConfigError(fmt::format("--accumulation-schedule {} and {} both say how many samples a "
                                  "step has",
                                  schedule, batch.global->where),
                      "give one of them");
  }
  if (options.step.gradient_reduction == ReductionChoice::kMicroBatch) {
    throw ConfigError(
        "--accumulation-schedule with --gradient-reduction micro-batch: ranks would "
        "add gradients of micro-batches that a step does not have",
        "leave --gradient-reduction out");
  }
  batch.gradient_accumulation_steps = most;
}

std::int64_t micro_batches_of_step(const BatchOptions& batch, std::int64_t step) {
  std::int64_t micro_batches = 0;
  for (const AccumulationPhase& phase : phases_of(batch)) {
    if (phase.first_step <= step) micro_batches = phase.micro_batches;
  }
  return micro_batches;
}

std::int64_t micro_batches_until(const BatchOptions& batch, std::int64_t step) {
  std::int64_t sum = 0;
  for_each_phase(batch, [&](const AccumulationPhase& phase, std::int64_t steps) {
    const std::int64_t done = step - phase.first_step + 1;
    sum += phase.micro_batches * std::clamp<std::int64_t>(done, 0, steps);
  });
  return sum;
}

std::int64_t step_of_micro_batches(const BatchOptions& batch, std::int64_t micro_batches) {
  std::int64_t last_step = 0;
  for_each_phase(batch, [&](const AccumulationPhase& phase, std::int64_t steps) {
    const std::int64_t wanted = (micro_batches + phase.micro_batches - 1) / phase.micro_batches;
    const std::int64_t taken = std::min(std::max<std::int64_t>(wanted, 0), steps);
    micro_batches -= taken * phase.micro_batches;
    last_step += taken;
  });
  return last_step;
}

}  // namespace terrace
