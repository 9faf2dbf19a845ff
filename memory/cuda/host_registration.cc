#include "memory/cuda/host_registration.h"

#include <cuda_runtime_api.h>
#include <fmt/format.h>

#include "base/bytes.h"
#include "base/error.h"
#include "memory/cuda/cuda_error.h"

namespace terrace {

HostRegistration::HostRegistration(std::span<std::byte> memory) : memory_(memory) {
  if (memory_.empty()) return;
  const cudaError_t error =
      cudaHostRegister(memory_.data(), memory_.size(), cudaHostRegisterPortable);
  if (error == cudaSuccess) return;
  cudaGetLastError();  // not sticky
  if (error == cudaErrorMemoryAllocation || error == cudaErrorOperatingSystem) {
    throw OutOfMemory(fmt::format("the system cannot lock {} of host memory for the GPU",
                                  format_size(memory_.size())),
                      "lower the host memory budget, or, if the driver obeys it, raise the limit "
                      "on locked memory (ulimit -l unlimited)");
  }
  throw_cuda_environment_error("cudaHostRegister", error);
}

HostRegistration::~HostRegistration() {
  if (!memory_.empty()) cudaHostUnregister(memory_.data());
}

}  // namespace terrace
