#include "tests/kernels/fiber_kernels.h"

#include "kernels/shared/kernel_functions.h"
#include "tests/kernels/fiber_block.h"

namespace terrace::test {
namespace {

struct FiberFunctions : HostFunctionsBase {
  using Launcher = FiberLauncher;
  static FiberLauncher launcher(const KernelContext& context) {
    return FiberLauncher(context.workspace);
  }
};

constexpr KernelTable kFiberKernels = shared::kernel_functions<FiberFunctions>("fibers");

}  // namespace

const KernelTable& fiber_kernels() { return kFiberKernels; }

}  // namespace terrace::test
