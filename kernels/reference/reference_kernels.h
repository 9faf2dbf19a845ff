#pragma once

#include "kernels/kernel_table.h"

namespace terrace {

// Naive scalar code, one loop per index, on one thread: the definition of correct. Beside fp32 and
// bf16 it takes all activations, parameters and weight gradients in fp64, for gradient checks by
// finite differences (the fp32 statistics are then fp64 too).
const KernelTable& reference_kernels();

}  // namespace terrace
