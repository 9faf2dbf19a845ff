#pragma once

#include "kernels/kernel_table.h"

namespace terrace {

// Returns the kernels of kernels/shared on a GPU. cuBLASLt computes matrix products (plain fp32
// tiles do where it has no algorithm); cuDNN computes attention where context.attention is set and
// has a plan. All views and the workspace are device memory, and so is HeadLoss::loss_sum. The
// context has a stream and `products`; a call enqueues, and throws a DeviceError that names the op
// if it cannot.
const KernelTable& cuda_kernels();

}  // namespace terrace
