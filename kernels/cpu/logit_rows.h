#pragma once

#include <cstdint>

#include "base/half.h"
#include "kernels/cpu/product_result.h"
#include "kernels/kernel_table.h"

// The rowwise loops of the head's loss on blocks of logits that are still in the cache. Highway
// with run-time dispatch; single-threaded; sums in an order that depends on the block alone. A NaN
// among the logits of a row makes its sum NaN.
namespace terrace {

// What a product h . weight becomes: scale times it, and with a cap above 0 then cap * tanh(. /
// cap).
struct LogitMap {
  LogitMap(float factor, float soft_cap) : scale(factor), cap(soft_cap) {}
  explicit LogitMap(const HeadLoss& op) : LogitMap(op.logit_scale, op.soft_cap) {}

  bool is_identity() const { return scale == 1.0F && cap <= 0.0F; }
  // The derivative of the logit with respect to the product, over scale.
  double slope(double logit) const { return cap > 0.0F ? 1 - logit * logit / cap / cap : 1.0; }

  float scale, cap;
};
// In place, of a row and of a block.
void map_logits(const LogitMap& map, float* logits, std::int64_t elements);
void map_logits(const LogitMap& map, const ProductSums& logits);

// Of a row, or of a block's part of it: the largest logit and the sum of exp(logit - max).
struct RowExponentials {
  float max = 0.0F;
  float sum = 0.0F;
};
// Row r of the block goes to out[r * stride].
void sum_exponentials(const ProductSums& logits, RowExponentials* out, std::int64_t stride);

// What a row's logits become: exp(logit - max) * factor, and with a cap this times 1 - (logit /
// cap)^2; but at_target in the column of the target; zero where the row is not counted.
struct RowGradient {
  float max = 0.0F;
  float factor = 0.0F;
  float at_target = 0.0F;
  std::int32_t target = -1;  // counted from the first column of the vocabulary; negative: none
};
// Row r of a block goes to target + r * stride, by the r-th of `rows`.
struct LogitGradients {
  const RowGradient* rows = nullptr;
  Bf16* target = nullptr;
  std::int64_t stride = 0;
  float cap = 0.0F;  // above 0: of all rows
};
// The first column of the block is `column` of the vocabulary.
void round_logit_gradients(const ProductSums& logits, std::int64_t column,
                           const LogitGradients& to);

}  // namespace terrace
