#pragma once

#include <cstddef>
#include <memory>
#include <span>

#include "kernels/kernel_table.h"
#include "memory/cuda/host_registration.h"
#include "memory/device.h"
#include "optim/update_rule.h"
#include "parallel/communicator.h"

// The device that a step computes on, and the kernels and communicators that work on its memory.
namespace terrace {

// The kernels that the ops of a lane call.
struct LaneKernels {
  const KernelTable* table = nullptr;
  void (*update)(const KernelContext&, const UpdateRule&, const ParameterUpdate&) = nullptr;
  CudaProducts* products = nullptr;     // for the context of CUDA kernels
  CudnnAttention* attention = nullptr;  // for that context, too
};

// A device that is there, and its kernels. Used by the lanes of one engine.
class ComputeDevice {
 public:
  virtual ~ComputeDevice() = default;
  virtual Device& device() = 0;
  // For tensors in the device's memory. They serve one lane at a time.
  virtual LaneKernels kernels() = 0;
  // Makes copies between the device and this host memory asynchronous while the returned object
  // lives. Returns null where they need no registration for that. Throws OutOfMemory.
  virtual std::unique_ptr<HostRegistration> lock(std::span<std::byte> host_memory) = 0;
};

// The way in which ranks with a device each exchange the content of its memory.
class DeviceExchange {
 public:
  virtual ~DeviceExchange() = default;
  // Returns a communicator of the ranks of `meeting`, which outlives it: an abort of one of the two
  // aborts the other. All ranks call it. The communicator adds as parallel/communicator.h says,
  // except that sums of fp32 may have another order. Throws CommError, OutOfMemory.
  virtual std::unique_ptr<Communicator> make_communicator(
      Communicator& meeting, const CommunicatorOptions& options) const = 0;
};

// A kind of device: the facts that a plan needs before a device exists. Outlives its devices.
class ComputeBackend {
 public:
  virtual ~ComputeBackend() = default;
  // Returns the kernels with their workspaces and arguments, as the devices that it makes have
  // them.
  virtual const KernelTable& kernels() const = 0;
  // Makes a device with room for `capacity_bytes`. Throws EnvironmentError, OutOfMemory,
  // DeviceError.
  virtual std::unique_ptr<ComputeDevice> make(std::size_t capacity_bytes) const = 0;
  // Returns null where the host reaches the device's memory: communicators of host memory then
  // reach it too.
  virtual const DeviceExchange* exchange() const = 0;
};

// Returns null where there is no backend, too.
inline const DeviceExchange* exchange_of(const ComputeBackend* backend) {
  return backend == nullptr ? nullptr : backend->exchange();
}

// Makes the CPU device, which every build has.
std::unique_ptr<ComputeDevice> make_cpu_compute_device(std::size_t capacity_bytes);
// Returns the CPU kernels. The CPU device uses them, and so do the lanes of the host with any
// device.
LaneKernels cpu_lane_kernels();

// Returns the backend of GPU `ordinal`. Throws EnvironmentError in a build without CUDA. Only
// make() finds out whether there is a GPU.
std::unique_ptr<ComputeBackend> make_cuda_backend(int ordinal);

}  // namespace terrace
