#pragma once

#include <string>
#include <vector>

#include "runtime/train/plan_forecast.h"

// Changes that would make a planned run faster: of the machine, and of settings, where they cost
// nothing.
namespace terrace {

struct PlanGain {
  std::string change;  // "64.0 GiB more host memory", or flags: "--recompute none"
  bool is_of_machine = true;
  double times_as_fast = 1;
};

// The least gain that is worth a line.
inline constexpr double kLeastGain = 1.02;

// Plans and simulates the run again with each change, and returns those that make a step at least
// kLeastGain times as fast, the largest first. Changes alter the result of no run, except that
// other micro-batches round sums in another order.
std::vector<PlanGain> plan_gains(const PlanOptions& options, const Machine& machine,
                                 const RunForecast& forecast);

// Returns the gains as lines for people.
std::string describe_gains(const std::vector<PlanGain>& gains);

}  // namespace terrace
