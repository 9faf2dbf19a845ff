#pragma once

#include <cstdint>

#include "base/half.h"
#include "kernels/cpu/product_result.h"
#include "kernels/kernel_table.h"

// The rowwise loops of the head's loss on blocks of logits that are still in the cache. Highway
// with run-time dispatch; single-threaded; sums in an order that depends on the block alone. A NaN
// among the logits of a row makes its sum NaN.
namespace terrace {

// How a product h . weight becomes a logit: it is multiplied by scale, and with a cap above 0 the
// result x then becomes cap * tanh(x / cap).
struct LogitMap {
  LogitMap(float factor, float soft_cap) : scale(factor), cap(soft_cap) {}
  explicit LogitMap(const HeadLoss& op) : LogitMap(op.logit_scale, op.soft_cap) {}

  bool is_identity() const { return scale == 1.0F && cap <= 0.0F; }
  // Returns the derivative of the logit with respect to the product, divided by scale.
  double slope(double logit) const { return cap > 0.0F ? 1 - logit * logit / cap / cap : 1.0; }

  float scale, cap;
};
// Turn products into logits in place, for a row and for a block.
void map_logits(const LogitMap& map, float* logits, std::int64_t elements);
void map_logits(const LogitMap& map, const ProductSums& logits);

// The largest logit and the sum of exp(logit - max) of a row, or of the part of it in a block.
struct RowExponentials {
  float max = 0.0F;
  float sum = 0.0F;
};
// Writes the exponentials of row r of the block to out[r * stride].
void sum_exponentials(const ProductSums& logits, RowExponentials* out, std::int64_t stride);

// How a row's logits become gradients: exp(logit - max) * factor, with a cap multiplied by 1 -
// (logit / cap)^2. The column of the target gets at_target instead. All are zero where the row is
// not counted.
struct RowGradient {
  float max = 0.0F;
  float factor = 0.0F;
  float at_target = 0.0F;
  std::int32_t target = -1;  // counted from the first column of the vocabulary; negative: none
};
// Where the gradients go: row r of a block is computed with the r-th of `rows` and goes to target +
// r * stride.
struct LogitGradients {
  const RowGradient* rows = nullptr;
  Bf16* target = nullptr;
  std::int64_t stride = 0;
  float cap = 0.0F;  // above 0: the cap of all rows
};
// Rounds the gradients of a block of logits. Its first column is `column` of the vocabulary.
void round_logit_gradients(const ProductSums& logits, std::int64_t column,
                           const LogitGradients& to);

}  // namespace terrace
