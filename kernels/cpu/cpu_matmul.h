#pragma once

#include <cstddef>

#include "kernels/kernel_table.h"

// Matrix products by oneDNN. The shape alone decides how a product is cut into tiles. Each tile is
// one single-threaded oneDNN call over all of K, and the workers of the context share the tiles, so
// bits do not depend on the number of workers. Operands may have any alignment.
namespace terrace {

void cpu_matmul_forward(const KernelContext& context, const MatmulForward& op);
void cpu_matmul_backward_input(const KernelContext& context, const MatmulBackwardInput& op);
void cpu_matmul_backward_weight(const KernelContext& context, const MatmulBackwardWeight& op);

std::size_t cpu_matmul_forward_workspace(const MatmulForward& op, int workers);
std::size_t cpu_matmul_backward_input_workspace(const MatmulBackwardInput& op, int workers);
std::size_t cpu_matmul_backward_weight_workspace(const MatmulBackwardWeight& op, int workers);

}  // namespace terrace
