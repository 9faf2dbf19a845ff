#pragma once

#include <cuda_runtime_api.h>

#include <string_view>

// How results of the CUDA runtime become errors of ours. For memory/cuda/, kernels/cuda/,
// optim/cuda/ and parallel/nccl/ only.
namespace terrace {

// Throws DeviceError naming the call and `where` (a stream, an op), unless `error` is cudaSuccess.
void check_cuda(cudaError_t error, std::string_view call, std::string_view where = {});

// For calls before a run: what is missing is the driver, or a GPU.
[[noreturn]] void throw_cuda_environment_error(std::string_view call, cudaError_t error);

// Later calls of this thread are about GPU `ordinal`.
void use_cuda_device(int ordinal);

}  // namespace terrace
