#pragma once

#include <chrono>
#include <memory>

#include "memory/device.h"
#include "parallel/communicator.h"

// The things that a process of rank_processes.h has as a rank: a GPU, and communicators with the
// other ranks.
namespace terrace::test {

// Returns the GPU of this rank, which it may share with others. Chosen once per process, before
// other uses of CUDA.
int own_gpu();

// With this timeout, a rank that hangs is named long before the job is ended.
inline constexpr CommunicatorOptions kRankOptions = {.timeout = std::chrono::seconds(60)};

// The communicator of all ranks of the job for host memory, over NCCL, as `terrace train` makes it
// under torchrun. All ranks must create it.
class NcclWorld {
 public:
  explicit NcclWorld(const CommunicatorOptions& options = kRankOptions);
  Communicator& ranks() { return *ranks_; }

 private:
  std::unique_ptr<Device> device_;
  std::unique_ptr<Communicator> ranks_;
};

}  // namespace terrace::test
