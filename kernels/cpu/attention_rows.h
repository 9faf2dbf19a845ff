#pragma once

#include <cstdint>

#include "base/dtype.h"
#include "kernels/cpu/packed_strips.h"

// The rowwise loops between the matrix products of attention, on one strip of queries: from the
// squares of fp32 sums that one product leaves to the packed strips that the next one takes.
// Highway with run-time dispatch; single-threaded; sums in an order that depends on lengths alone.
// A NaN in a row makes its results NaN.
namespace terrace {

// Scores of a strip of queries by a panel of keys: squares, one behind the other. Query r may see
// the first `visible + r` keys of the panel, at most all of them, and no key before first_keys[r] -
// key. At least one query sees a key.
struct ScoreStrip {
  float* scores = nullptr;
  std::int64_t rows = 0;  // queries that are there, at most kStrip
  std::int64_t columns = 0;
  std::int64_t visible = 0;
  float scale = 1.0F;
  float soft_cap = 0.0F;                     // 0: none
  const std::int64_t* first_keys = nullptr;  // [rows]; null: 0 for all
  std::int64_t key = 0;                      // the panel's first; for first_keys

  // Returns the number of squares in which a query sees a key. Nothing is read or written after
  // them.
  std::int64_t squares() const {
    const std::int64_t most = visible + kStrip - 1;
    return strips_of(most < columns ? most : columns);
  }
};

// One step of a running softmax over panels of keys. `weights` receives exp(scale * score - max),
// or exp(score - max) for a capped score, as a left strip over the keys; it is 0 where a key is not
// visible or a query does not exist. max and sum [kStrip] and output, squares of `width` columns,
// hold the state; before the first step max is -infinity and sum 0. sum and output are rescaled to
// the new maximum; the weights are added to sum here, and to output by the caller's next product. A
// query that sees no key of the panel keeps its state. Scores are overwritten where there is a cap
// or keys are hidden.
struct SoftmaxStrip {
  ScoreStrip strip;
  std::byte* weights = nullptr;
  DType packed = DType::kBF16;  // of the weights
  float* max = nullptr;
  float* sum = nullptr;
  float* output = nullptr;
  std::int64_t width = 0;
  bool first = false;  // there is no output yet
};
void softmax_strip(const SoftmaxStrip& step);

// Where rows of a strip go: `rows` rows of `width` elements, `stride` apart.
struct StripRows {
  std::byte* data = nullptr;
  DType dtype = DType::kF32;
  std::int64_t rows = 0, width = 0, stride = 0;
};

// Finishes the softmax after the last step: row r = output / sum, log_sum_exp[r] = max + log(sum).
void softmax_finish(const SoftmaxStrip& last, const StripRows& target, float* log_sum_exp);

// From scores and dweights (the gradient of the weights, in squares like the scores) to weights =
// exp(scale * score - log_sum_exp) and dscores = weights * (dweights - delta) * scale; both are 0
// where a key is not visible or a query does not exist. With a cap, scores are capped first, and
// dscores are also multiplied by 1 - tanh^2. Scores are overwritten as above. Weights and dscores
// go into steps of right strips over the keys whose depth is the queries: the step of the first
// strip of keys is given, and each next strip's step is right_stride elements later. dscores also
// go into a left strip over the keys.
struct GradientStrip {
  ScoreStrip strip;
  const float* dweights = nullptr;
  const float* log_sum_exp = nullptr;  // [rows]
  const float* delta = nullptr;        // [rows]
  DType packed = DType::kBF16;
  std::byte* weights = nullptr;
  std::byte* dscores = nullptr;
  std::byte* dscores_left = nullptr;
  std::int64_t right_stride = 0;
};
void softmax_gradient(const GradientStrip& gradient);

// Row r = row r of the squares of a strip, rounded to the type.
void round_rows(const float* squares, const StripRows& target);
// Row r = column r of squares that lie one below the other, rounded to the type.
void round_columns(const float* squares, const StripRows& target);

// sums[r] = the dot product of rows r of a and b, rows of `width` elements `stride` apart.
struct RowDots {
  std::int64_t rows = 0, width = 0, stride = 0;
  const void* a = nullptr;
  const void* b = nullptr;
  DType dtype = DType::kF32;
  float* sums = nullptr;
};
void row_dots(const RowDots& dots);

}  // namespace terrace
