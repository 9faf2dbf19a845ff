#pragma once

#include "kernels/kernel_table.h"

namespace terrace::test {

// Returns the kernels of kernels/shared, which are compiled for the GPU too, run by host_block.h.
const KernelTable& shared_kernels();

}  // namespace terrace::test
