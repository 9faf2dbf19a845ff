#pragma once

#include <cstddef>
#include <memory>
#include <string>

#include "memory/device.h"

// The CUDA device. The header is there in every build; in one without CUDA, and on a machine
// without a driver or a GPU, the functions below throw EnvironmentError saying what is missing.
namespace terrace {

// CUDA was asked for when this was configured.
bool is_cuda_built();

// GPUs that this process may use (CUDA_VISIBLE_DEVICES counts). 0 where there is no driver: never
// throws.
int cuda_device_count() noexcept;

// Whether GPU `ordinal` is there and no older than those that the kernels were compiled for
// (CMAKE_CUDA_ARCHITECTURES: sm_80 and newer). Never throws.
bool cuda_device_computes(int ordinal) noexcept;

// Device memory kept free of arenas: kernels are loaded when first used, and libraries keep some.
inline constexpr std::size_t kCudaMarginBytes = std::size_t{1} << 30;

// What an arena of GPU `ordinal` may take now: its free memory less kCudaMarginBytes.
std::size_t cuda_capacity_bytes(int ordinal);

struct CudaDeviceOptions {
  int ordinal = 0;
  std::size_t capacity_bytes = 0;  // 0: cuda_capacity_bytes()
};

// Memory by cudaMalloc, streams and events of CUDA. It outlives what it gave out. Any thread.
//
// Beyond memory/device.h: a task that is run() launches at once, on the calling thread; a copy from
// or to host memory is asynchronous where that memory is page-locked (HostRegistration), and blocks
// the caller as CUDA sees fit where it is not. A failure of the device is sticky: every later call
// on it throws DeviceError, which names the call that met it and its stream.
std::unique_ptr<Device> make_cuda_device(const CudaDeviceOptions& options);

// The PCI address of GPU `ordinal`, as GpuFacts has it.
std::string cuda_pci_address(int ordinal);

// Of GPU `ordinal`, for people: "NVIDIA H100 (sm_90, 80.0 GiB)".
std::string describe_cuda_device(int ordinal);

}  // namespace terrace
