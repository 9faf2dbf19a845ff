#pragma once

#include "kernels/cpu/matrix_product.h"

// Products of a few rows with a weight, c [m,n] = a [m,k] b^T (+ bias), which read each row of the
// weight once, where it lies. Packing it first would take several times as long as multiplying.
namespace terrace {

inline constexpr std::int64_t kFewRows = 8;

// Returns whether the product has this form: at most kFewRows rows, each column of the result a
// stored row of b, and neither a gradient nor a consumer.
bool is_of_few_rows(const MatrixProduct& product);

// Multiplies without a workspace. The bits of an element depend on its rows of a and b alone, and
// on the instruction set.
void few_rows_multiply(const KernelContext& context, const MatrixProduct& product);

}  // namespace terrace
