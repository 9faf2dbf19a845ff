#pragma once

#include "kernels/kernel_table.h"

namespace terrace {

// Returns naive scalar code, one loop per index, on one thread: the definition of correct. Besides
// fp32 and bf16 it takes all activations, parameters and weight gradients in fp64, for gradient
// checks by finite differences (the fp32 statistics are then fp64 too).
const KernelTable& reference_kernels();

}  // namespace terrace
