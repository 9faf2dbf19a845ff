#pragma once

#include <cstddef>
#include <vector>

#include "runtime/step/machine_profile.h"
#include "runtime/step/step_model.h"
#include "runtime/train/plan_choice.h"

// Estimates of the time of a step, in microseconds of work instead of the seconds that a plan can
// take. A search plans and simulates the choices with the lowest estimates first.
namespace terrace {

// The work of a unit for one micro-batch, on one of the tensor-parallel ranks.
struct UnitCost {
  double forward_flops = 0;   // of a head: 0
  double backward_flops = 0;  // of a head: of forward and backward
  double recompute_flops = 0;
  double forward_exchange_bytes = 0;  // between tensor-parallel ranks
  double backward_exchange_bytes = 0;
  double recompute_exchange_bytes = 0;
  int forward_ops = 0;
  int backward_ops = 0;
  int recompute_ops = 0;
  double saved_bytes = 0;
  double elements = 0;  // parameters of its own
  double chunks = 0;    // that these are moved and updated in
};

struct ModelCost {
  std::vector<UnitCost> units;
  double hidden_bytes = 0;  // between units
  double bytes_per_parameter = 2;
  double bytes_of_optimizer = 10;  // for a parameter
};

ModelCost cost_of_model(const StepModel& model);

// The memory of a rank, and the rates at which it works.
struct RankMeans {
  MachineProfile profile;
  double fast_bytes = 0;   // the budget of the tier in which units compute
  double other_bytes = 0;  // of the other tiers
  // The speed of each pipeline stage, by which the profile's rates for products and for memory in
  // which units compute are multiplied. Empty: all have the speed 1.
  std::vector<double> stage_speeds = {};
};

// Returns about how long a step takes: no plan has been made, and the sizes of buffers are rough.
// Infinite where the state has no room in all tiers together.
double estimated_step_s(const ModelCost& model, const PlanChoice& choice, const RankMeans& means);

// Returns about how many ops the programs of all pipeline stages have together. The time of a plan
// grows with it.
double estimated_ops(const ModelCost& model, const PlanChoice& choice);

}  // namespace terrace
