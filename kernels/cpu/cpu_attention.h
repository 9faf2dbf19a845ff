#pragma once

#include <cstddef>

#include "kernels/kernel_table.h"

// Causal attention in strips of queries against panels of keys with a running softmax; no T x T
// matrix exists. Scores, softmax and all sums are fp32. The shape fixes the tasks and the order of
// their sums, so bits do not depend on the number of workers.
namespace terrace {

void cpu_attention_forward(const KernelContext& context, const AttentionForward& op);
void cpu_attention_backward(const KernelContext& context, const AttentionBackward& op);

std::size_t cpu_attention_forward_workspace(const AttentionForward& op, int workers);
std::size_t cpu_attention_backward_workspace(const AttentionBackward& op, int workers);

}  // namespace terrace
