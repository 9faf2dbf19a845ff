#pragma once

#include <string>

namespace terrace {

// "cuBLASLt 13.1.0": the library that is loaded. Empty in a build without CUDA.
std::string cublaslt_version();

}  // namespace terrace
