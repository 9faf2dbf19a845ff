#pragma once

#include "kernels/kernel_context.h"
#include "optim/update_rule.h"

namespace terrace {

// Enqueues an update on the context's stream, with the bits of rule.reference(). All views, and
// update.scalars too, are device memory. Throws DeviceError.
void update_cuda(const KernelContext& context, const UpdateRule& rule,
                 const ParameterUpdate& update);

}  // namespace terrace
