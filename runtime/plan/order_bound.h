#pragma once

#include <cstddef>
#include <cstdint>

#include "runtime/step/program.h"
#include "runtime/step/step_model.h"

namespace terrace {

// Returns the bytes that a step moves between tiers and data-parallel ranks.
double moved_bytes(const Program& program);
// Returns how many of these bytes one repetition moves.
double moved_by_repetition(const Program& program);

// Returns a lower bound of moved_bytes() for steps in micro-batch-major order that fit
// `compute_bytes` of the compute tier (`unified`: host memory), wherever the states are at home.
//
// Between two micro-batches the compute tier holds P bytes of parameters and G bytes of fp32
// gradient sums, at most as many as it has room for. All other parameters are fetched for the next
// forward, and again for the backward; on a device, all other gradients are added to sums on the
// host. Only whole passes from one micro-batch to the next are counted.
double least_moved_micro_batch_major(const StepModel& model, std::int32_t micro_batches,
                                     bool unified, std::size_t compute_bytes);

}  // namespace terrace
