#include "tests/kernels/shared_kernels.h"

#include "kernels/shared/kernel_functions.h"
#include "tests/kernels/host_block.h"

namespace terrace::test {
namespace {

struct HostFunctions : HostFunctionsBase {
  using Launcher = HostLauncher;
  static HostLauncher launcher(const KernelContext& context) {
    return {*context.workers, context.workspace};
  }
};

constexpr KernelTable kSharedKernels = shared::kernel_functions<HostFunctions>("shared");

}  // namespace

const KernelTable& shared_kernels() { return kSharedKernels; }

}  // namespace terrace::test
