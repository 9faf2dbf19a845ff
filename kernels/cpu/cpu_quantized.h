#pragma once

#include "kernels/kernel_table.h"

namespace terrace {

// The bits of the reference: one product and one rounding an element. Blocks of kElementBlock
// elements are shared by the workers.
void cpu_dequantize(const KernelContext& context, const Dequantize& op);

}  // namespace terrace
