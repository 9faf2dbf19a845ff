#pragma once

#include "kernels/kernel_table.h"

namespace terrace::test {

// Returns the kernels of kernels/shared, run by fiber_block.h. A context's workers are not used.
const KernelTable& fiber_kernels();

}  // namespace terrace::test
