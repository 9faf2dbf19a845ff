#pragma once

#include <memory>

#include "memory/device.h"
#include "parallel/communicator.h"
#include "parallel/launch_environment.h"
#include "runtime/config/train_options.h"

namespace terrace {

// The ranks of a job without MPI, such as torchrun's, that have a GPU each. They meet through NCCL,
// and the values that they agree on go over their GPUs too.
class GpuWorld {
 public:
  // All ranks call it. Throws EnvironmentError where there is no GPU for this rank, and CommError
  // where the ranks do not find each other.
  GpuWorld(const LaunchEnvironment& launch, const DeviceChoice& device,
           const CommunicatorOptions& options);

  // Returns the communicator of all ranks, for host memory.
  Communicator& ranks() { return *ranks_; }

 private:
  std::unique_ptr<Device> device_;  // holds data on its way between the host and other GPUs
  std::unique_ptr<Communicator> ranks_;
};

}  // namespace terrace
