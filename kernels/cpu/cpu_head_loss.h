#pragma once

#include <cstddef>

#include "kernels/kernel_table.h"

// The fused head and loss, in chunks of rows whose size the vocabulary fixes
// (kernels/head_chunk.h). The weight gradient of the micro-batch is the sum of its chunks in order,
// and is added to dweight once.
namespace terrace {

void cpu_head_loss(const KernelContext& context, const HeadLoss& op);

std::size_t cpu_head_loss_workspace(const HeadLoss& op, int workers);

}  // namespace terrace
