#pragma once

#include <cstddef>
#include <cstdint>

#include "runtime/engine/compute_backend.h"
#include "runtime/engine/model_runtime.h"
#include "runtime/step/machine_profile.h"

namespace terrace {

struct OpMeasurement {
  const ModelRuntimeOptions& options;
  const TierPlan& plan;
  double seconds_most = 3;            // the end of each op must be expected before
  std::size_t bytes_most = SIZE_MAX;  // of host memory
  // The device that the plan is for, where it has memory of its own: its free_bytes() may be used.
  // Null: the CPU device.
  ComputeDevice* device = nullptr;
};

// Measures how long the ops of a step take on this machine, each with nothing else of the step
// going on, and sets `seconds_per_work` of the profile for the classes that have none. One op of
// each class is run (OpClass), on the CPU device and with the engine's threads, on made-up numbers.
// The memory for it is the memory that this op has in a step, and is given back at the end. Ops
// that move data, and the norm's end, are left out.
//
// Returns whether all classes have times now. Leaves out ops that need more than `bytes_most`, and
// ops that are expected to go beyond `seconds_most`: an op takes as long as its products at
// profile.flops_per_s, and on a device as long as StreamTimer measures. Throws OutOfMemory.
bool measure_ops(const OpMeasurement& measurement, MachineProfile& profile);

// Measures two rates: at which all of the engine's threads copy the host's memory, and at which one
// thread does. The CPU device uploads and downloads at the second. Takes 128 MiB for some
// hundredths of a second. Throws OutOfMemory.
void measure_copies(const ModelRuntimeOptions& options, MachineProfile& profile);

}  // namespace terrace
