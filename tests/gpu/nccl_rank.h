#pragma once

#include <memory>

#include "memory/device.h"
#include "parallel/communicator.h"

// What a process of rank_processes.h has as a rank: a GPU, and communicators with the others.
namespace terrace::test {

// The GPU of this rank, which it may share with others. Once per process, before other uses of
// CUDA.
int own_gpu();

// Of all ranks of the job and of host memory, by NCCL, as `terrace train` makes it under torchrun.
// All ranks call it.
class NcclWorld {
 public:
  explicit NcclWorld(const CommunicatorOptions& options = {});
  Communicator& ranks() { return *ranks_; }

 private:
  std::unique_ptr<Device> device_;
  std::unique_ptr<Communicator> ranks_;
};

}  // namespace terrace::test
