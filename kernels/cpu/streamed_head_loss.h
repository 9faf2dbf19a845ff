#pragma once

#include <cstddef>

#include "kernels/kernel_table.h"

// The head and its loss in bf16 without ever writing logits to memory. A first pass over the
// vocabulary multiplies for the rows' exponential sums alone; a second one multiplies again, part
// by part, and turns each part's logits into their gradients while they are in the cache. Every
// product is then of all rows at once, so a weight gradient is written once. The parts are fixed by
// the shape. For products that are cheap (tile registers); cpu_head_loss chooses.
namespace terrace {

// Whether it does this op: bf16, and logits are not wanted.
bool streams_head_loss(const HeadLoss& op);
void streamed_head_loss(const KernelContext& context, const HeadLoss& op);
std::size_t streamed_head_loss_workspace(const HeadLoss& op, int workers);

}  // namespace terrace
