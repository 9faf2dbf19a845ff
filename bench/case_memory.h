#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "kernels/kernel_context.h"
#include "memory/host/host_memory.h"
#include "memory/tensor.h"

namespace terrace {

class CaseDevice;  // bench/case_device.h

// Tensors for one benchmark, each in memory of its own. Values are small, of either sign, and never
// zero: multiplying zeros takes less power, and looks faster than it is.
class CaseMemory {
 public:
  virtual ~CaseMemory() = default;

  TensorView tensor(DType dtype, std::int64_t d0, std::int64_t d1 = 1, std::int64_t d2 = 1);
  // Makes `count` i32 numbers in [0, bound).
  TensorView indices(std::int64_t count, std::int64_t bound);
  // Makes memory that is all zeros.
  std::span<std::byte> zeros(std::size_t size);
  // Makes a copy of `content`.
  std::span<std::byte> holding(std::span<const std::byte> content);
  virtual std::span<std::byte> bytes(std::size_t size) = 0;
  virtual KernelContext context(std::size_t workspace_bytes) = 0;

 protected:
  // Writes the elements of a span on the host, from the first one on.
  using Fill = std::function<void(std::span<std::byte>)>;
  // Fills `target` with the elements that `fill` writes. A large target may hold their beginning
  // again and again.
  virtual void write(std::span<std::byte> target, const Fill& fill) = 0;
};

// Memory on huge pages, for kernels of the CPU.
class HostCaseMemory final : public CaseMemory {
 public:
  explicit HostCaseMemory(WorkerArena& workers) : workers_(workers) {}

  std::span<std::byte> bytes(std::size_t size) override;
  KernelContext context(std::size_t workspace_bytes) override;

 private:
  void write(std::span<std::byte> target, const Fill& fill) override;

  WorkerArena& workers_;
  std::vector<HostMemory> pieces_;
};

// Memory of a device, for kernels that it runs. Throws OutOfMemory, DeviceError.
class DeviceCaseMemory final : public CaseMemory {
 public:
  explicit DeviceCaseMemory(CaseDevice& device) : device_(device) {}

  std::span<std::byte> bytes(std::size_t size) override;
  KernelContext context(std::size_t workspace_bytes) override;

 private:
  void write(std::span<std::byte> target, const Fill& fill) override;

  CaseDevice& device_;
  std::vector<std::unique_ptr<DeviceMemory>> pieces_;
};

}  // namespace terrace
