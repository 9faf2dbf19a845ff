#pragma once

#include <cstddef>
#include <memory>

#include "runtime/engine/compute_backend.h"

// A device that treats the host as a GPU does, of which it needs none. Its memory has addresses
// that fault when the host touches them: only copies on its streams and its kernels know where the
// bytes are. A task runs at once on the thread that issues it, and what it calls is queued. A
// failure is sticky. A thread that issues a lane's ops must not wait for it, but on lanes that have
// ops of the host too. Its kernels are the CPU's unless others are asked for, and sums over ranks
// are those of threads, so the bits are those of the CPU device.
namespace terrace::test {

class KindsOfCalls;

struct FakeGpuOptions {
  // The call of streams and events that is the first to fail, counted from 1; 0: none.
  int failing_call = 0;
  // Likewise, of its communicators.
  int failing_collective = 0;
  // Those of GPUs, on the host (tests/kernels/shared_kernels.h): they have fp16.
  bool has_shared_kernels = false;
  // Notes the calls of its communicators; may be null.
  KindsOfCalls* kinds_of_calls = nullptr;
};

class FakeGpuBackend final : public ComputeBackend, private DeviceExchange {
 public:
  explicit FakeGpuBackend(const FakeGpuOptions& options = FakeGpuOptions()) : options_(options) {}

  const KernelTable& kernels() const override;
  std::unique_ptr<ComputeDevice> make(std::size_t capacity_bytes) const override;
  const DeviceExchange* exchange() const override { return this; }

 private:
  // Of ranks as threads.
  std::unique_ptr<Communicator> make_communicator(
      Communicator& meeting, const CommunicatorOptions& options) const override;

  const FakeGpuOptions options_;
};

// The device alone.
std::unique_ptr<Device> make_fake_gpu(std::size_t capacity_bytes);

}  // namespace terrace::test
