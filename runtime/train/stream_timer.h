#pragma once

#include <exception>
#include <memory>
#include <span>

#include "base/function_ref.h"
#include "memory/device.h"

namespace terrace {

// Kernels to launch on a stream.
class KernelTask final : public StreamTask {
 public:
  // Borrows `launch`.
  explicit KernelTask(FunctionRef<void(NativeStream)> launch) : launch_(launch) {}

  void run(NativeStream stream) noexcept override;
  // Rethrows the failure of the last launch, if it failed.
  void rethrow() const;

 private:
  const FunctionRef<void(NativeStream)> launch_;
  std::exception_ptr failure_;
};

// Times work of a device whose tasks launch at once on the calling thread, and fills its memory.
// Used by one thread.
class StreamTimer {
 public:
  // A GPU that computes lowers its clock within some hundredths of a second to stay within its
  // power limit: an H200 from 1980 to 1600 MHz. So work is run for kSettleS before it counts, and
  // is then measured for kEnoughS. Very short work is run less long.
  static constexpr double kSettleS = 0.06;
  static constexpr double kEnoughS = 0.04;

  explicit StreamTimer(Device& device);

  // Returns the seconds that the device takes for `kernels`. Short ones are launched many times in
  // a row, so that the host's launches delay them no more than in a step. The first launches do not
  // count: they load the kernels, and the device's clock has yet to settle.
  // Throws DeviceError, and what a launch throws.
  double seconds_of(FunctionRef<void(NativeStream)> kernels);
  // Returns the seconds of a copy, measured in the same way.
  double seconds_of_copy(std::span<std::byte> target, std::span<const std::byte> source);

  // Fills device memory with made-up numbers, which are small and positive in every floating-point
  // type. Their low bits differ, because products of equal numbers take a GPU less power, and so
  // less time, than products of real ones.
  void fill(std::span<std::byte> memory);
  // Copies bytes of the host to the device. They may change when it has returned.
  void put(std::span<std::byte> target, std::span<const std::byte> source);

 private:
  double seconds_per_run(FunctionRef<void()> issue);
  double seconds_of_runs(int runs, FunctionRef<void()> issue);

  const std::unique_ptr<Event> begin_;
  const std::unique_ptr<Event> end_;
  const std::unique_ptr<Stream> stream_;  // last: waits for what is queued
};

}  // namespace terrace
