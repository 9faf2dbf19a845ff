#include "base/error.h"
#include "parallel/nccl/nccl_communicator.h"

// For builds without CUDA.
namespace terrace {

std::string nccl_version() { return {}; }

namespace {

[[noreturn]] void refuse() {
  throw EnvironmentError("this program was built without CUDA and therefore without NCCL",
                         "install the CUDA toolkit and NCCL, and build the preset cuda");
}

}  // namespace

std::unique_ptr<Communicator> make_nccl_communicator(Communicator& /*meeting*/,
                                                     const std::string& /*name*/, int /*ordinal*/,
                                                     const CommunicatorOptions& /*options*/) {
  refuse();
}

std::unique_ptr<Communicator> make_nccl_world(const LaunchEnvironment& /*launch*/,
                                              const std::string& /*name*/, int /*ordinal*/,
                                              const CommunicatorOptions& /*options*/) {
  refuse();
}

}  // namespace terrace
