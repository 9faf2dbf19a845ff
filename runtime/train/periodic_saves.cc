#include "runtime/train/periodic_saves.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "runtime/train/evaluation.h"

namespace terrace {

std::int64_t steps_between_saves(double step_s) {
  constexpr double kMost = 1e9;  // for steps that take no time
  const double steps = step_s > 0 ? std::min(kMost, kSaveSeconds / step_s) : kMost;
  double unit = 1;
  while (steps >= 100 * unit) unit *= 10;
  return std::max<std::int64_t>(1, std::llround(steps / unit) * std::llround(unit));
}

std::optional<std::int64_t> choose_save_interval(const FirstSteps& measured, double elapsed_s,
                                                 double times_longer) {
  if (!measured.is_full() && elapsed_s < kSaveSeconds) return std::nullopt;
  const std::optional<MeasuredStep> step = measured.measured();
  if (!step.has_value()) return std::nullopt;
  return steps_between_saves(times_longer * step->median_step_s);
}

bool PeriodicSaves::choose(std::int64_t steps) {
  if (steps <= 0) return false;
  interval_.steps = steps;
  return true;
}

bool PeriodicSaves::is_due(std::int64_t step) const {
  return !is_off_ && terrace::is_due(interval_.steps, step);
}

std::string PeriodicSaves::describe_choice() const {
  return interval_.steps == 1
             ? std::string("saves the state after every step (--checkpoint-every auto)")
             : fmt::format(
                   "saves the state every {} steps, about every {:.0f} minutes "
                   "(--checkpoint-every auto)",
                   interval_.steps, kSaveSeconds / 60);
}

}  // namespace terrace
