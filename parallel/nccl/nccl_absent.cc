#include "base/error.h"
#include "parallel/nccl/nccl_communicator.h"

// For builds without CUDA.
namespace terrace {

std::string nccl_version() { return {}; }

std::unique_ptr<Communicator> make_nccl_communicator(Communicator& /*meeting*/,
                                                     const std::string& /*name*/, int /*ordinal*/,
                                                     const CommunicatorOptions& /*options*/) {
  throw EnvironmentError("this program was built without CUDA, and so without NCCL",
                         "install the CUDA toolkit and NCCL, and build the preset cuda");
}

}  // namespace terrace
