#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "kernels/kernel_context.h"
#include "memory/host/host_memory.h"
#include "memory/tensor.h"

namespace terrace {

// Tensors for one benchmark, each in memory of its own on huge pages. Values are small, of either
// sign, and never zero: multiplying zeros takes less power, and looks faster than it is.
class CaseMemory {
 public:
  explicit CaseMemory(WorkerArena& workers) : workers_(workers) {}

  TensorView tensor(DType dtype, std::int64_t d0, std::int64_t d1 = 1, std::int64_t d2 = 1);
  // i32 in [0, bound).
  TensorView indices(std::int64_t count, std::int64_t bound);
  KernelContext context(std::size_t workspace_bytes);
  std::span<std::byte> bytes(std::size_t size);

 private:
  WorkerArena& workers_;
  std::vector<HostMemory> pieces_;
};

}  // namespace terrace
