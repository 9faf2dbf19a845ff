#include "memory/cuda/cuda_error.h"

#include <fmt/format.h>

#include <string>

#include "base/error.h"

namespace terrace {
namespace {

std::string text_of(std::string_view call, cudaError_t error) {
  return fmt::format("{}: {} ({})", call, cudaGetErrorString(error), cudaGetErrorName(error));
}

bool lacks_driver(cudaError_t error) {
  return error == cudaErrorInsufficientDriver || error == cudaErrorNoDevice ||
         error == cudaErrorSystemDriverMismatch || error == cudaErrorInitializationError;
}

}  // namespace

void check_cuda(cudaError_t error, std::string_view call, std::string_view where) {
  if (error == cudaSuccess) return;
  cudaGetLastError();  // an error that is not sticky is reported once
  const std::string text = text_of(call, error);
  throw DeviceError(where.empty() ? text : fmt::format("{}: {}", where, text),
                    "an earlier operation may be the cause: run again with CUDA_LAUNCH_BLOCKING=1 "
                    "or under compute-sanitizer");
}

void throw_cuda_environment_error(std::string_view call, cudaError_t error) {
  cudaGetLastError();
  throw EnvironmentError(text_of(call, error),
                         lacks_driver(error)
                             ? "install the NVIDIA driver, and make sure that this process may "
                               "open /dev/nvidia*; terrace doctor lists the GPUs"
                             : "terrace doctor lists the GPUs");
}

void use_cuda_device(int ordinal) { check_cuda(cudaSetDevice(ordinal), "cudaSetDevice"); }

}  // namespace terrace
