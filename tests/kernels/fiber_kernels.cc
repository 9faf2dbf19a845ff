#include "tests/kernels/fiber_kernels.h"

#include "kernels/shared/kernel_functions.h"
#include "tests/kernels/fiber_block.h"

namespace terrace::test {
namespace {

struct FiberFunctions {
  using Launcher = FiberLauncher;
  static FiberLauncher launcher(const KernelContext& context) {
    return FiberLauncher(context.workspace);
  }
  static constexpr std::size_t kProductWorkspace = 0;
  template <typename Op>
  static std::size_t attention_workspace(const Op& /*op*/) {
    return 0;
  }
  static constexpr auto kPrepareAttention = nullptr;
};

constexpr KernelTable kFiberKernels = shared::kernel_functions<FiberFunctions>("fibers");

}  // namespace

const KernelTable& fiber_kernels() { return kFiberKernels; }

}  // namespace terrace::test
