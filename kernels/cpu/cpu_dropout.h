#pragma once

#include "kernels/kernel_table.h"

namespace terrace {

// Drops elements of rows of fp32 or bf16 (KernelTable::dropout), with the bits of the reference.
void cpu_dropout(const KernelContext& context, const Dropout& op);

}  // namespace terrace
