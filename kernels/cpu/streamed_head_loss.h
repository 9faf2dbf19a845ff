#pragma once

#include <cstddef>

#include "base/function_ref.h"
#include "kernels/cpu/logit_rows.h"
#include "kernels/kernel_table.h"

// The head and its loss in bf16 without ever writing logits to memory. A first pass over the
// vocabulary computes the logits for the rows' exponential sums alone; a second pass computes them
// again, part by part, and turns each part's logits into their gradients while they are in the
// cache. Every product then takes all rows at once, so a weight gradient is written once. The parts
// are fixed by the shape. This pays where products are cheap (tile registers); cpu_head_loss
// chooses.
namespace terrace {

// Returns whether the op can be done this way: it is in bf16, and logits are not wanted.
bool streams_head_loss(const HeadLoss& op);
void streamed_head_loss(const KernelContext& context, const HeadLoss& op);
std::size_t streamed_head_loss_workspace(const HeadLoss& op, int workers);

// The two passes by themselves, for a vocabulary in parts: op.weight has the tokens from
// first_token on. They need the workspace above; for the first pass it is sized without dh.
void streamed_head_sums(const KernelContext& context, const HeadLoss& op, std::int64_t first_token,
                        LogitSums* sums);
// `gradient_of` tells how a row's logits become gradients; any thread may call it.
void streamed_head_gradients(const KernelContext& context, const HeadLoss& op,
                             FunctionRef<RowGradient(std::int64_t row)> gradient_of);

}  // namespace terrace
