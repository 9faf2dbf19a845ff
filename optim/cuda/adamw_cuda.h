#pragma once

#include "kernels/kernel_context.h"
#include "optim/adamw.h"

namespace terrace {

// Enqueues an update on the context's stream: the bits of adamw_reference(). All views, and
// update.scalars too, are device memory. Throws DeviceError.
void adamw_cuda(const KernelContext& context, const ParameterUpdate& update);

}  // namespace terrace
