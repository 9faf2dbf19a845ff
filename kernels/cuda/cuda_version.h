#pragma once

#include <string>

namespace terrace {

// Returns the library that is loaded, like "cuBLASLt 13.1.0". Empty in a build without CUDA.
std::string cublaslt_version();

}  // namespace terrace
