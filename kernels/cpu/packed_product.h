#pragma once

#include <cstddef>

#include "kernels/cpu/matrix_product.h"
#include "kernels/cpu/packed_strips.h"

// A product in our own code: both operands are packed, then blocks of c are computed from the
// packed strips, each with its fp32 sums in a worker's own memory until they are complete. An
// operand that would need too much memory is packed in parts; the shape decides them. Products of
// few rows are computed in panels instead (panel_product.h), with the same bits.
namespace terrace {

void packed_multiply(const KernelContext& context, const MatrixProduct& product,
                     const StripCode& code);
// Returns the columns of every block except the last in a row of blocks.
std::int64_t packed_block_columns(const GemmShape& shape);
std::size_t packed_multiply_workspace(const MatrixProduct& product, int workers,
                                      const StripCode& code);

}  // namespace terrace
