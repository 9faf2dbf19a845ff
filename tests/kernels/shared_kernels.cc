#include "tests/kernels/shared_kernels.h"

#include "kernels/shared/kernel_functions.h"
#include "tests/kernels/host_block.h"

namespace terrace::test {
namespace {

struct HostFunctions {
  using Launcher = HostLauncher;
  static HostLauncher launcher(const KernelContext& context) {
    return {*context.workers, context.workspace};
  }
  static constexpr std::size_t kProductWorkspace = 0;
  template <typename Op>
  static std::size_t attention_workspace(const Op& /*op*/) {
    return 0;
  }
  static constexpr auto kPrepareAttention = nullptr;
};

constexpr KernelTable kSharedKernels = shared::kernel_functions<HostFunctions>("shared");

}  // namespace

const KernelTable& shared_kernels() { return kSharedKernels; }

}  // namespace terrace::test
