#pragma once

#include <cuda_runtime_api.h>

#include <string_view>

// Turns results of the CUDA runtime into errors of ours. For memory/cuda/, kernels/cuda/,
// optim/cuda/ and parallel/nccl/ only.
namespace terrace {

// Throws DeviceError naming the call and `where` (a stream, an op), unless `error` is cudaSuccess.
void check_cuda(cudaError_t error, std::string_view call, std::string_view where = {});

// Throws the error of a call that is made before a run: the driver, or a GPU, is missing.
[[noreturn]] void throw_cuda_environment_error(std::string_view call, cudaError_t error);

// Makes later calls of this thread use GPU `ordinal`.
void use_cuda_device(int ordinal);

}  // namespace terrace
