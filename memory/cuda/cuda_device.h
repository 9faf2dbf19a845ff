#pragma once

#include <cstddef>
#include <memory>
#include <string>

#include "memory/device.h"

// The CUDA device. Every build has this header. In a build without CUDA, and on a machine without a
// driver or a GPU, the functions below throw EnvironmentError saying what is missing.
namespace terrace {

// Returns whether CUDA was asked for when this build was configured.
bool is_cuda_built();

// Returns the number of GPUs that this process may use (CUDA_VISIBLE_DEVICES counts); 0 where there
// is no driver. Never throws.
int cuda_device_count() noexcept;

// Returns whether GPU `ordinal` is there and no older than the GPUs that the kernels were compiled
// for (CMAKE_CUDA_ARCHITECTURES: sm_80 and newer). Never throws.
bool cuda_device_computes(int ordinal) noexcept;

// Device memory that arenas leave free: kernels are loaded when first used, and libraries keep some
// memory.
inline constexpr std::size_t kCudaMarginBytes = std::size_t{1} << 30;

// Returns the bytes that an arena of GPU `ordinal` may take now: its free memory less
// kCudaMarginBytes.
std::size_t cuda_capacity_bytes(int ordinal);

struct CudaDeviceOptions {
  int ordinal = 0;
  std::size_t capacity_bytes = 0;  // 0: cuda_capacity_bytes()
};

// Makes a device with memory by cudaMalloc, and CUDA's streams and events. It outlives everything
// it gave out. Any thread.
//
// Beyond memory/device.h: a task that is run() launches at once, on the calling thread. A copy from
// or to host memory is asynchronous where that memory is page-locked (HostRegistration); otherwise
// it blocks the caller as CUDA sees fit. A failure of the device is sticky: every later call on it
// throws DeviceError, which names the call that met the failure and its stream.
std::unique_ptr<Device> make_cuda_device(const CudaDeviceOptions& options);

// Returns the PCI address of GPU `ordinal`, in the form that GpuFacts has.
std::string cuda_pci_address(int ordinal);

// Describes GPU `ordinal` for people: "NVIDIA H100 (sm_90, 80.0 GiB)".
std::string describe_cuda_device(int ordinal);

}  // namespace terrace
