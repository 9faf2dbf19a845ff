#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <span>

#include "bench/bench_device.h"
#include "kernels/kernel_context.h"

namespace terrace {

// A device on which kernels run alone, timed by its own clock. Used by one thread.
class CaseDevice {
 public:
  // With room for `capacity_bytes`. Throws as ComputeBackend::make() does.
  CaseDevice(const BenchDevice& device, std::size_t capacity_bytes);

  Device& device() { return compute_->device(); }
  const LaneKernels& kernels() const { return kernels_; }
  // For kernels: they run in the order of their calls.
  KernelContext context(std::span<std::byte> workspace) const;

  // Waits until it is done.
  void upload(std::span<std::byte> target, std::span<const std::byte> source);
  // Enqueues a copy within the device.
  void copy(std::span<std::byte> target, std::span<const std::byte> source);
  // Calls so many times what enqueues work; how many seconds this took the device, from the end of
  // what was enqueued before. Throws DeviceError, also of that.
  double seconds(const std::function<void()>& enqueue, int calls);

 private:
  const std::unique_ptr<ComputeDevice> compute_;
  const LaneKernels kernels_;
  const std::unique_ptr<Stream> stream_;
  const std::unique_ptr<Event> begin_, end_;
  NativeStream native_;
};

}  // namespace terrace
