#pragma once

#include <cstdint>

#include "base/dtype.h"

// Rowwise loops around matrix products: exponentials, sums, conversions. Highway with run-time
// dispatch; single-threaded; sums in an order that depends on lengths alone. A NaN in a row makes
// its results NaN.
namespace terrace {

// Replaces a row of logits by exp(logit - max). Their sum is in fp64, over fp32 sums of parts.
struct ExpRow {
  float max = 0.0F;
  double sum = 0.0;
};
ExpRow exponentiate_row(float* logits, std::int64_t elements);
// Returns the same, but leaves the logits as they are.
ExpRow sum_row(const float* logits, std::int64_t elements);

// target = factor * exp(logit - max) * (1 - (logit / cap)^2), rounded to the compute type: the
// gradients of the products that capped logits were made from. target may be the logits where it is
// fp32.
struct CappedRow {
  const float* logits = nullptr;
  float max = 0.0F, factor = 0.0F, cap = 0.0F;
};
void capped_gradients(const CappedRow& row, std::int64_t elements, void* target, DType dtype);

// target = factor * source, rounded to the compute type; target may be the source where that is
// fp32.
void scale_row(const float* source, float factor, std::int64_t elements, void* target, DType dtype);

// target += source, or target = 0 + source: one fp32 addition per element.
void add_row(const float* source, std::int64_t elements, float* target);
void assign_row(const float* source, std::int64_t elements, float* target);

// sums[i] += the column sum of `rows` rows, `stride` apart, in order of rows.
struct ColumnSums {
  std::int64_t rows = 0, columns = 0, stride = 0;
  const void* source = nullptr;
  DType dtype = DType::kF32;
  float* sums = nullptr;
};
void add_column_sums(const ColumnSums& columns);

}  // namespace terrace
