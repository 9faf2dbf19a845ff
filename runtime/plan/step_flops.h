#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

#include "runtime/step/program.h"
#include "runtime/step/step_model.h"

// The matrix products that a step cannot do without, and how fast they could be.
namespace terrace {

struct StepFlops {
  // Forward and backward of all micro-batches. In attention they count only the half of each square
  // that is not masked.
  double necessary = 0;
  double recomputed = 0;  // forwards that are computed again
  // The FLOPs that a model FLOPs utilisation counts beside the necessary ones: the other half of
  // the squares. They are of all layers of the model, as far as these have a backward, and of this
  // rank's micro-batches.
  double masked_halves = 0;
};

// Returns the FLOPs of a step of `model`.
StepFlops flops_of_step(const Program& program, const StepModel& model);

// Returns the bf16 products per second, dense and summed in fp32, that the maker states for a GPU
// of that name, times two; none where the name is not known.
std::optional<double> stated_flops_per_s(std::string_view gpu);

// Returns the tokens per second of steps that compute only their necessary products, at this rate.
double tokens_at_light(const StepFlops& flops, double tokens, double flops_per_s);

}  // namespace terrace
