#include "optim/lr_schedule.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "base/check.h"

namespace terrace {

double learning_rate_at(const LrSchedule& schedule, std::int64_t step) {
  TERRACE_CHECK_LE(1, step);
  TERRACE_CHECK_LE(1, schedule.total_steps);
  const double peak = schedule.learning_rate;
  const std::int64_t s = std::min(step, schedule.total_steps);
  const auto since_warmup = static_cast<double>(s - schedule.warmup_steps);
  if (since_warmup < 0) {
    return peak * static_cast<double>(s) / static_cast<double>(schedule.warmup_steps);
  }
  if (since_warmup == 0 || schedule.type == LrSchedulerType::kConstant) return peak;
  const double fall = peak - schedule.min_learning_rate;
  const double progress =
      since_warmup / static_cast<double>(schedule.total_steps - schedule.warmup_steps);
  const double left = schedule.type == LrSchedulerType::kCosine
                          ? 0.5 * (1.0 + std::cos(std::numbers::pi * progress))
                          : 1.0 - progress;
  return schedule.min_learning_rate + fall * left;
}

}  // namespace terrace
