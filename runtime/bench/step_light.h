#pragma once

#include <cstdint>

#include "runtime/model/block_tensors.h"
#include "runtime/model/model_config.h"
#include "runtime/step/program.h"

// The speed of light of a step: the time of the matrix products that it cannot do without.
namespace terrace {

struct StepFlops {
  // Forward and backward of all micro-batches, of attention the half of each square that is not
  // masked.
  double necessary = 0;
  double recomputed = 0;  // forwards that are done again
  // As a model FLOPs utilisation counts them: the necessary ones, with whole squares.
  double with_whole_squares = 0;
};

StepFlops flops_of_step(const Program& program, const ModelConfig& model, const BatchShape& batch);

// Tokens per second of steps that were only their necessary products, at this rate.
double tokens_at_light(const StepFlops& flops, double tokens, double flops_per_s);

}  // namespace terrace
