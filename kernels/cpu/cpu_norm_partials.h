#pragma once

#include "kernels/kernel_table.h"

// Sums of squares of the gradient's blocks by the tree of kernels/norm_tree.h: the same bits on
// every instruction set. Blocks are shared by the workers.
namespace terrace {

void cpu_norm_partials(const KernelContext& context, const NormPartials& op);

}  // namespace terrace
