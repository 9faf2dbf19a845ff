#pragma once

#include "kernels/kernel_table.h"

namespace terrace {

// Returns the CPU's kernels. They use oneDNN for matrix products (AMX or AVX-512 where the
// processor has them), Highway with run-time dispatch for the rest, and oneTBB workers. Bits do not
// depend on the number of workers.
const KernelTable& cpu_kernels();

}  // namespace terrace
