#pragma once

#include <cstddef>

#include "kernels/cpu/matrix_product.h"

// The product by tile registers: both operands are packed, then blocks of c are computed from the
// packed strips, each with its fp32 sums in a worker's own memory until they are complete. An
// operand that would need too much memory is packed in parts, which the shape decides.
namespace terrace {

void amx_multiply(const KernelContext& context, const MatrixProduct& product);
// The columns of all blocks but the last ones.
std::int64_t amx_block_columns(const GemmShape& shape);
std::size_t amx_multiply_workspace(const GemmShape& shape, int workers);

}  // namespace terrace
