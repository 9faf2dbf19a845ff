#pragma once

#include "runtime/step/program.h"
#include "runtime/step/step_model.h"
#include "runtime/train/compute_backend.h"

// Which numbers the ranks of a step add, and whether the communicators of its devices can.
namespace terrace {

// Of an op that adds over ranks: gradients, on the lane between data-parallel ranks; on that
// between tensor-parallel ranks hidden states and their gradients, or fp32 gradients of norms.
DType sum_type(const Op& op, const StepModel& model);

// Throws ConfigError, with what to do instead, where an op of the program adds numbers in device
// memory that the exchange does not add over so many ranks as parallel/communicator.h says. Null:
// what the host reaches, where ranks add everything.
void check_device_sums(const Program& program, const StepModel& model,
                       const DeviceExchange* exchange);

}  // namespace terrace
