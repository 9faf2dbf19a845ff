#include "kernels/cuda/cuda_version.h"

#include <cublasLt.h>
#include <fmt/format.h>

namespace terrace {

std::string cublaslt_version() {
  const std::size_t version = cublasLtGetVersion();
  return fmt::format("cuBLASLt {}.{}.{}", version / 10000, version / 100 % 100, version % 100);
}

}  // namespace terrace
