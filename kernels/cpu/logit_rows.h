#pragma once

#include <cstdint>

#include "base/half.h"
#include "kernels/cpu/product_result.h"

// The rowwise loops of the head's loss on blocks of logits that are still in the cache. Highway
// with run-time dispatch; single-threaded; sums in an order that depends on the block alone. A NaN
// among the logits of a row makes its sum NaN.
namespace terrace {

// Of a row, or of a block's part of it: the largest logit and the sum of exp(logit - max).
struct RowExponentials {
  float max = 0.0F;
  float sum = 0.0F;
};
// Row r of the block goes to out[r * stride].
void sum_exponentials(const ProductSums& logits, RowExponentials* out, std::int64_t stride);

// What a row's logits become: exp(logit - max) * factor, but at_target in the column of the target;
// zero where the row is not counted.
struct RowGradient {
  float max = 0.0F;
  float factor = 0.0F;
  float at_target = 0.0F;
  std::int32_t target = -1;  // counted from the first column of the vocabulary; negative: none
};
// Row r of the block, whose first column is `column` of the vocabulary, goes to target + r *
// stride, by the r-th of `rows`.
void round_logit_gradients(const ProductSums& logits, std::int64_t column, const RowGradient* rows,
                           Bf16* target, std::int64_t stride);

}  // namespace terrace
