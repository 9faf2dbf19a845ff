#pragma once

#include <cstddef>

#include "kernels/kernel_table.h"

// The head and its loss with a part of the vocabulary, in two passes; between the passes the parts
// exchange their sums. Both passes compute the logits: chunk by chunk, or streamed, as in
// cpu_head_loss.
namespace terrace {

void cpu_head_sums(const KernelContext& context, const HeadSums& op);
void cpu_head_part_loss(const KernelContext& context, const HeadPartLoss& op);
std::size_t cpu_head_sums_workspace(const HeadSums& op, int workers);
std::size_t cpu_head_part_loss_workspace(const HeadPartLoss& op, int workers);

}  // namespace terrace
