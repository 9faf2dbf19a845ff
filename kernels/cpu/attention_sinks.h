#pragma once

#include "kernels/kernel_table.h"

// The gradient of attention sinks. A task has one head, whose queries are added in fp64 in their
// order, so bits do not depend on the number of workers.
namespace terrace {

void cpu_attention_sinks_backward(const KernelContext& context, const AttentionSinksBackward& op);

}  // namespace terrace
