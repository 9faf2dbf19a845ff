#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/config/plan_options.h"

namespace terrace {

// The settings that a search of plans chooses. None of them changes what a run computes, except for
// the order in which sums are rounded.
struct PlanChoice {
  std::int32_t ranks_per_node = 1;
  bool ranks_are_threads = false;  // of one process: on a single node
  std::int32_t data = 1;           // follows from the number of ranks
  std::int32_t tensor = 1;
  std::int32_t pipeline = 1;
  std::int32_t zero_stage = 0;
  std::int64_t micro_batch_size = 1;
  std::int64_t micro_batches = 1;  // gradient accumulation steps
  PipelineSchedule schedule = PipelineSchedule::k1F1B;
  std::int32_t virtual_stages = 1;
  std::vector<double> stage_speeds;  // that layers are divided by; follow from the machine
  RecomputeChoice recompute = RecomputeChoice::kAuto;
  OrderChoice order = OrderChoice::kAuto;
  ByStateClass<Placement> places;  // auto where the planner chooses

  // Returns whether ranks and samples are divided alike.
  bool has_division_of(const PlanChoice& other) const {
    return ranks_per_node == other.ranks_per_node && tensor == other.tensor &&
           pipeline == other.pipeline && micro_batch_size == other.micro_batch_size;
  }
  friend bool operator==(const PlanChoice&, const PlanChoice&) = default;
};

// Returns the options with these settings.
PlanOptions with_choice(const PlanOptions& options, const PlanChoice& choice);

// Returns the choice for people: "data 8 x tensor 4 x stages 2, zero 1, batch 2 x 16".
std::string describe(const PlanChoice& choice);

// Returns the settings as a file for `terrace train --config`: those that the user has given, and
// those that were chosen. `about` becomes its first lines, as comments.
std::string choice_toml(const PlanOptions& options, const PlanChoice& choice,
                        std::string_view about);

}  // namespace terrace
