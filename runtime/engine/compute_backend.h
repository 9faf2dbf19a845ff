#pragma once

#include <cstddef>
#include <memory>
#include <span>

#include "kernels/kernel_table.h"
#include "memory/cuda/host_registration.h"
#include "memory/device.h"
#include "optim/update_rule.h"
#include "parallel/communicator.h"

// What a step computes on: a device, and what works on its memory.
namespace terrace {

// What the ops of a lane call.
struct LaneKernels {
  const KernelTable* table = nullptr;
  void (*update)(const KernelContext&, const UpdateRule&, const ParameterUpdate&) = nullptr;
  CudaProducts* products = nullptr;     // for the context of CUDA kernels
  CudnnAttention* attention = nullptr;  // likewise
};

// A device that is there, and its kernels. Used by the lanes of one engine.
class ComputeDevice {
 public:
  virtual ~ComputeDevice() = default;
  virtual Device& device() = 0;
  // For tensors in the device's memory. They serve one lane at a time.
  virtual LaneKernels kernels() = 0;
  // Makes copies between the device and host memory asynchronous while what is returned lives; null
  // where they are. Throws OutOfMemory.
  virtual std::unique_ptr<HostRegistration> lock(std::span<std::byte> host_memory) = 0;
};

// How ranks with a device each exchange what is in its memory.
class DeviceExchange {
 public:
  virtual ~DeviceExchange() = default;
  // A communicator of the ranks of `meeting`, which outlives it: of the two, what aborts one aborts
  // the other. All of them call it. It adds as parallel/communicator.h says, but that sums of fp32
  // may have another order. Throws CommError, OutOfMemory.
  virtual std::unique_ptr<Communicator> make_communicator(
      Communicator& meeting, const CommunicatorOptions& options) const = 0;
};

// A kind of device: what a plan must know of one before it is there. Outlives its devices.
class ComputeBackend {
 public:
  virtual ~ComputeBackend() = default;
  // Their workspaces and arguments; the same as of the devices that it makes.
  virtual const KernelTable& kernels() const = 0;
  // With room for `capacity_bytes`. Throws EnvironmentError, OutOfMemory, DeviceError.
  virtual std::unique_ptr<ComputeDevice> make(std::size_t capacity_bytes) const = 0;
  // Null: the host reaches the device's memory, and so do communicators of host memory.
  virtual const DeviceExchange* exchange() const = 0;
};

// Null where there is no backend, too.
inline const DeviceExchange* exchange_of(const ComputeBackend* backend) {
  return backend == nullptr ? nullptr : backend->exchange();
}

// The CPU device, which every build has.
std::unique_ptr<ComputeDevice> make_cpu_compute_device(std::size_t capacity_bytes);
// CPU kernels: of that device, and of lanes of the host whatever the device.
LaneKernels cpu_lane_kernels();

// GPU `ordinal`. In a build without CUDA this throws EnvironmentError; whether there is a GPU is
// asked by make().
std::unique_ptr<ComputeBackend> make_cuda_backend(int ordinal);

}  // namespace terrace
