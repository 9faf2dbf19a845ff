#pragma once

#include "kernels/kernel_table.h"

namespace terrace {

// Gives the bits of the reference: one product and one rounding for each element. Blocks of
// kElementBlock elements are shared by the workers.
void cpu_dequantize(const KernelContext& context, const Dequantize& op);

}  // namespace terrace
