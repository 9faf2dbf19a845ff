#pragma once

#include <cstdint>

namespace terrace {

enum class LrSchedulerType : std::uint8_t { kCosine, kLinear, kConstant };

struct LrSchedule {
  LrSchedulerType type = LrSchedulerType::kCosine;
  double learning_rate = 3e-4;      // the peak
  double min_learning_rate = 3e-5;  // of the last step, for cosine and linear
  std::int64_t warmup_steps = 0;    // linear: step s of them has learning_rate * s / warmup_steps
  std::int64_t total_steps = 1;
};

// Returns the rate of step `step`, counted from 1. Steps after the last keep the last one's rate.
// With q = (step - warmup_steps) / (total_steps - warmup_steps), after the warmup:
//   cosine    min + (peak - min) * (1 + cos(pi q)) / 2
//   linear    min + (peak - min) * (1 - q)
//   constant  peak
double learning_rate_at(const LrSchedule& schedule, std::int64_t step);

}  // namespace terrace
