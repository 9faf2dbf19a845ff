#pragma once

#include <cstdint>

#include "base/dtype.h"

// The rowwise loops between the matrix products of attention and of the head: exponentials, running
// sums, conversions. Highway with run-time dispatch; single-threaded; sums in an order that depends
// on lengths alone. A NaN in a row makes its results NaN.
namespace terrace {

// A block of scores, queries by keys, of which query r may see the first `visible + r` keys (at
// most all); there is at least one.
struct ScoreBlock {
  float* scores = nullptr;  // [rows, stride]
  std::int64_t rows = 0, columns = 0, stride = 0;
  std::int64_t visible = 0;
  float scale = 1.0F;
};

// One step of a running softmax over blocks of keys. `weights` takes exp(scale * score - max) in
// the compute type, 0 where a key is not visible; it has the stride of the scores and may be their
// memory where the type is fp32. max, sum [rows] and output [rows, width] hold the state; before
// the first step max is -infinity and the others are 0. sum and output are rescaled to the new
// maximum; the weights join sum here, and output by the caller's next matrix product.
struct SoftmaxStep {
  ScoreBlock block;
  void* weights = nullptr;
  DType dtype = DType::kF32;
  float* max = nullptr;
  float* sum = nullptr;
  float* output = nullptr;
  std::int64_t width = 0;
};
void softmax_step(const SoftmaxStep& step);

// After the last step: target row r = output / sum, log_sum_exp[r] = max + log(sum).
struct SoftmaxFinish {
  std::int64_t rows = 0, width = 0;
  const float* max = nullptr;
  const float* sum = nullptr;
  const float* output = nullptr;
  void* target = nullptr;  // rows of `width` elements, `target_stride` apart
  DType dtype = DType::kF32;
  std::int64_t target_stride = 0;
  float* log_sum_exp = nullptr;
};
void softmax_finish(const SoftmaxFinish& finish);

// From scores and dweights (the gradient of the weights, with the layout of the scores) to weights
// = exp(scale * score - log_sum_exp) and dscores = weights * (dweights - delta) * scale, in the
// compute type with the stride of the scores, 0 where a key is not visible. Where the type is fp32,
// weights and dscores may be the memory of scores and dweights.
struct SoftmaxGradient {
  ScoreBlock block;
  const float* dweights = nullptr;
  const float* log_sum_exp = nullptr;
  const float* delta = nullptr;
  void* weights = nullptr;
  void* dscores = nullptr;
  DType dtype = DType::kF32;
};
void softmax_gradient(const SoftmaxGradient& gradient);

// sums[r] = the dot product of rows r of a and b, rows of `width` elements `stride` apart.
struct RowDots {
  std::int64_t rows = 0, width = 0, stride = 0;
  const void* a = nullptr;
  const void* b = nullptr;
  DType dtype = DType::kF32;
  float* sums = nullptr;
};
void row_dots(const RowDots& dots);

// target row r = source row r (dense fp32), rounded to the compute type.
struct RoundRows {
  std::int64_t rows = 0, width = 0;
  const float* source = nullptr;
  void* target = nullptr;
  DType dtype = DType::kF32;
  std::int64_t target_stride = 0;
};
void round_rows(const RoundRows& round);

// Replaces a row of logits by exp(logit - max). Their sum is fp64 over fp32 sums of parts.
struct ExpRow {
  float max = 0.0F;
  double sum = 0.0;
};
ExpRow exponentiate_row(float* logits, std::int64_t elements);

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
