#pragma once

#include <chrono>
#include <memory>

#include "memory/device.h"
#include "parallel/communicator.h"

// What a process of rank_processes.h has as a rank: a GPU, and communicators with the others.
namespace terrace::test {

// The GPU of this rank, which it may share with others. Once per process, before other uses of
// CUDA.
int own_gpu();

// A rank that hangs is named long before the job is ended.
inline constexpr CommunicatorOptions kRankOptions = {.timeout = std::chrono::seconds(60)};

// Of all ranks of the job and of host memory, by NCCL, as `terrace train` makes it under torchrun.
// All ranks call it.
class NcclWorld {
 public:
  explicit NcclWorld(const CommunicatorOptions& options = kRankOptions);
  Communicator& ranks() { return *ranks_; }

 private:
  std::unique_ptr<Device> device_;
  std::unique_ptr<Communicator> ranks_;
};

}  // namespace terrace::test
