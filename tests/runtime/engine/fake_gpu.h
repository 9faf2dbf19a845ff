#pragma once

#include <cstddef>
#include <memory>

#include "runtime/engine/compute_backend.h"

// A device that treats the host as a GPU does, without needing a GPU. Its memory has addresses that
// fault when the host touches them: only copies on its streams and its kernels know where the bytes
// are. A task runs at once on the thread that issues it, and the kernels that it calls are queued.
// A failure is sticky. A thread that issues a lane's ops must not wait for the device, except on
// lanes that also have ops of the host. Its kernels are the CPU's unless others are asked for, and
// its sums over ranks are the sums of ranks as threads, so the bits are the same as on the CPU
// device.
namespace terrace::test {

class KindsOfCalls;

struct FakeGpuOptions {
  // The number of the first call of streams and events that fails, counted from 1; 0: no call
  // fails.
  int failing_call = 0;
  // The number of the call of its communicators that fails, counted from 1; 0: no call fails.
  int failing_collective = 0;
  // Uses the kernels of GPUs, on the host (tests/kernels/shared_kernels.h), which support fp16.
  bool has_shared_kernels = false;
  // Records the calls of its communicators; may be null.
  KindsOfCalls* kinds_of_calls = nullptr;
};

class FakeGpuBackend final : public ComputeBackend, private DeviceExchange {
 public:
  explicit FakeGpuBackend(const FakeGpuOptions& options = FakeGpuOptions()) : options_(options) {}

  const KernelTable& kernels() const override;
  std::unique_ptr<ComputeDevice> make(std::size_t capacity_bytes) const override;
  const DeviceExchange* exchange() const override { return this; }

 private:
  // Makes communicators of ranks as threads.
  std::unique_ptr<Communicator> make_communicator(
      Communicator& meeting, const CommunicatorOptions& options) const override;

  const FakeGpuOptions options_;
};

// Makes the device alone.
std::unique_ptr<Device> make_fake_gpu(std::size_t capacity_bytes);

}  // namespace terrace::test
