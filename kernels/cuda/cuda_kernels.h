#pragma once

#include "kernels/kernel_table.h"

namespace terrace {

// The kernels of kernels/shared on a GPU, matrix products by cuBLASLt (plain fp32 tiles where it
// has no algorithm), attention by cuDNN where the context has one and that has a plan. All views
// and the workspace are device memory; HeadLoss::loss_sum too. The context has a stream and
// `products`; a call enqueues, and throws DeviceError naming the op where it cannot.
const KernelTable& cuda_kernels();

}  // namespace terrace
