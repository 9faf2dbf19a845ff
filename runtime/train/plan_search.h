#pragma once

#include <cstddef>
#include <vector>

#include "runtime/train/plan_choice.h"
#include "runtime/train/plan_forecast.h"

// Searches the settings with which a step is fastest on a machine, on two levels as Alpa does
// (Zheng et al., arXiv 2201.12023). The outer level divides the ranks and the batch; the inner
// level changes one setting after another of the fastest divisions. The simulator says how long a
// step takes, and settings that do not fit drop out.
namespace terrace {

struct SearchedPlan {
  PlanChoice choice;
  PlanOutcome outcome;
  double estimate_s = 0;
};

struct PlanSearch {
  // The fastest first: one or two as a training would plan them, then plans of other divisions, for
  // which the search takes less time.
  std::vector<SearchedPlan> best;
  std::size_t choices = 0;  // of the outer level
  std::size_t planned = 0;  // compiled and simulated, of both levels
  std::size_t refused = 0;  // of these, because they do not fit or contradict the model
  std::size_t left = 0;     // of the outer level, neither planned nor ruled out by estimates
};

// Equal arguments give equal results. Throws ConfigError where the given settings contradict each
// other, and OutOfMemory where nothing fits.
PlanSearch search_plans(const PlanOptions& options, const Machine& machine);

}  // namespace terrace
