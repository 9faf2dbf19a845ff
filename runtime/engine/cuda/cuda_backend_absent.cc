#include "base/error.h"
#include "runtime/engine/compute_backend.h"

// Replaces cuda_backend.cc in builds without CUDA.
namespace terrace {

std::unique_ptr<ComputeBackend> make_cuda_backend(int /*ordinal*/) {
  throw EnvironmentError("this program was built without CUDA",
                         "install the CUDA toolkit and build the preset cuda");
}

}  // namespace terrace
