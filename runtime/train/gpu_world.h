#pragma once

#include <memory>

#include "memory/device.h"
#include "parallel/communicator.h"
#include "parallel/launch_environment.h"
#include "runtime/config/train_options.h"

namespace terrace {

// The ranks of a job that has no MPI, torchrun's: they meet by NCCL, and what they agree on goes
// over their GPUs too.
class GpuWorld {
 public:
  // All ranks call it. Throws EnvironmentError where there is no GPU for this rank, or the CPU
  // device was asked for; CommError where the ranks do not come together.
  GpuWorld(const LaunchEnvironment& launch, const DeviceChoice& device,
           const CommunicatorOptions& options);

  // Of host memory.
  Communicator& ranks() { return *ranks_; }

 private:
  std::unique_ptr<Device> device_;  // has what passes between the host and other GPUs
  std::unique_ptr<Communicator> ranks_;
};

}  // namespace terrace
