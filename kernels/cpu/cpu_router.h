#pragma once

#include <cstddef>

#include "kernels/kernel_table.h"

// The ops of a router's losses besides the gradient of its logits, which is a part of
// cpu_choose_experts_backward(). Sums have an order that the shape alone decides.
namespace terrace {

void cpu_router_sums(const KernelContext& context, const RouterSums& op);
void cpu_router_slopes(const KernelContext& context, const RouterSlopes& op);

std::size_t cpu_router_sums_workspace(const RouterSums& op, int workers);

}  // namespace terrace
