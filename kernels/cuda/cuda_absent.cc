#include "kernels/cuda/cuda_version.h"

// For builds without CUDA.
namespace terrace {

std::string cublaslt_version() { return {}; }

}  // namespace terrace
