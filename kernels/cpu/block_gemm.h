#pragma once

#include <cstddef>

#include "kernels/cpu/onednn_gemm.h"

// A product of blocks that fit the second-level cache, on the calling thread alone: in tile
// registers where the processor has them, where it allocates nothing, else by oneDNN. fp32 output,
// no bias.
namespace terrace {

void block_gemm(const GemmShape& shape, const GemmOperands& operands);
std::size_t block_gemm_scratch_bytes(const GemmShape& shape);

}  // namespace terrace
