#pragma once

#include "runtime/engine/compute_backend.h"
#include "runtime/engine/model_runtime.h"
#include "runtime/step/machine_profile.h"

// Rates of a device with memory of its own, with nothing else going on.
namespace terrace {

// Returns the rate of the device's product of a micro-batch's rows with a square matrix of the
// model's width, up to 8192 each. Throws OutOfMemory, DeviceError.
double device_product_flops_per_s(ComputeDevice& device, const ModelRuntimeOptions& options);

// Measures copies of up to 64 MiB: up and down from page-locked memory of the host, and from device
// memory to device memory. Sets these three rates of the profile, and that copies keep no core of
// the host busy. Throws OutOfMemory, DeviceError.
void measure_device_copies(ComputeDevice& device, const ModelRuntimeOptions& options,
                           MachineProfile& profile);

}  // namespace terrace
