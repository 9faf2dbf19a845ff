#pragma once

#include "kernels/kernel_table.h"

// Rotary embedding: two products and one sum per element, each rounded in fp32, then one rounding
// to the compute type. Rows are shared by the workers.
namespace terrace {

void cpu_rope(const KernelContext& context, const Rope& op);

}  // namespace terrace
