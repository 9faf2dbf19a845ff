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
  // Makes a device with room for `capacity_bytes`. Throws as ComputeBackend::make() does.
  CaseDevice(const BenchDevice& device, std::size_t capacity_bytes);

  Device& device() { return compute_->device(); }
  const LaneKernels& kernels() const { return kernels_; }
  // Returns a context for kernels, which run in the order of their calls.
  KernelContext context(std::span<std::byte> workspace) const;

  // Copies to the device, and waits until the copy is done.
  void upload(std::span<std::byte> target, std::span<const std::byte> source);
  // Enqueues a copy within the device.
  void copy(std::span<std::byte> target, std::span<const std::byte> source);
  // Calls `enqueue` `calls` times. Returns the seconds that the work took the device, counted from
  // the end of the work that was enqueued before. Throws DeviceError, also for that earlier work.
  double seconds(const std::function<void()>& enqueue, int calls);

 private:
  const std::unique_ptr<ComputeDevice> compute_;
  const LaneKernels kernels_;
  const std::unique_ptr<Stream> stream_;
  const std::unique_ptr<Event> begin_, end_;
  NativeStream native_;
};

}  // namespace terrace
