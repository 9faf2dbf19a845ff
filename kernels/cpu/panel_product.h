#pragma once

#include <cstddef>

#include "kernels/cpu/matrix_product.h"
#include "kernels/cpu/packed_strips.h"

// A product of few rows with a large matrix, in our own code. Packing the whole matrix would hardly
// pay here: writing it to memory and reading it again takes an eighth of the product's time. So
// each task takes some columns, packs kPackDepth of their depth at a time into a panel that stays
// in the second-level cache, and multiplies all rows with it at once (the order of loops of Goto
// and van de Geijn, "Anatomy of High-Performance Matrix Multiplication", 2008). The sums of an
// element are added in the same order as in packed_product.h, so the bits are the same.
namespace terrace {

// Returns whether the product is computed in panels. The shape decides; products whose blocks are
// consumed are not.
bool is_of_panels(const MatrixProduct& product);
void panel_multiply(const KernelContext& context, const MatrixProduct& product,
                    const StripCode& code);
std::size_t panel_multiply_workspace(const MatrixProduct& product, int workers,
                                     const StripCode& code);

}  // namespace terrace
