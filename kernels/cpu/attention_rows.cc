#include "kernels/cpu/attention_rows.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/cpu/highway_targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/attention_rows.cc"
#include "hwy/foreach_target.h"

// After foreach_target.h, which compiles this file once per instruction set.
#include "hwy/highway.h"
#include "kernels/cpu/cpu_exp.inl"
#include "kernels/cpu/cpu_vector.inl"

HWY_BEFORE_NAMESPACE();
namespace terrace {
namespace HWY_NAMESPACE {

constexpr float kLowest = -std::numeric_limits<float>::infinity();
constexpr std::int64_t kVectors = kStrip / kLanes;  // of a row of a square

HWY_INLINE std::int64_t visible_columns(const ScoreStrip& strip, std::int64_t row) {
  return row < strip.rows ? std::min(strip.columns, strip.visible + row) : 0;
}

// Returns the number of columns of a row before its first key.
HWY_INLINE std::int64_t hidden_columns(const ScoreStrip& strip, std::int64_t row) {
  if (strip.first_keys == nullptr || row >= strip.rows) return 0;
  return std::max<std::int64_t>(0, strip.first_keys[row] - strip.key);
}

// Calls body(square, column, count) for the vectors of a row of `visible` keys: at `column` of a
// square, with `count` keys that are visible, at least one.
template <typename Body>
HWY_INLINE void for_each_visible(std::int64_t visible, const Body& body) {
  const std::int64_t whole = visible / kStrip;
  for (std::int64_t square = 0; square < whole; ++square) {
#pragma GCC unroll 8
    for (std::int64_t v = 0; v < kVectors; ++v) body(square, v * kLanes, kLanes);
  }
  for (std::int64_t column = 0; whole * kStrip + column < visible; column += kLanes) {
    body(whole, column, std::min(kLanes, visible - whole * kStrip - column));
  }
}

HWY_INLINE Vec keep_first(Vec value, std::int64_t count) {
  if (count >= kLanes) return value;
  if (count <= 0) return hn::Zero(Lanes());
  return hn::IfThenElseZero(hn::FirstN(Lanes(), static_cast<std::size_t>(count)), value);
}

// Caps scores where there is a cap, and sets the scores before a row's first key to -infinity.
void apply_rule(const ScoreStrip& strip) {
  const Vec cap = splat(strip.soft_cap);
  const Vec scale = splat(strip.scale / strip.soft_cap);
  for (std::int64_t r = 0; r < strip.rows; ++r) {
    float* row = strip.scores + square_at(r, 0);
    const std::int64_t visible = std::max<std::int64_t>(0, visible_columns(strip, r));
    if (strip.soft_cap > 0.0F) {
      for_each_visible(
          visible, [&](std::int64_t square, std::int64_t column, std::int64_t) TERRACE_VECTOR_BODY {
            float* at = row + square * kStepElements + square_at(0, column);
            store(hn::Mul(cap, tanh_of(hn::Mul(load(at), scale))), at);
          });
    }
    const std::int64_t hidden = std::min(visible, hidden_columns(strip, r));
    for (std::int64_t column = 0; column < hidden; ++column) {
      row[column / kStrip * kStepElements + square_at(0, column % kStrip)] = kLowest;
    }
  }
}

// Applies the rule and returns the factor by which scores still have to be multiplied.
HWY_INLINE float scale_after_rule(const ScoreStrip& strip) {
  if (strip.soft_cap > 0.0F || strip.first_keys != nullptr) apply_rule(strip);
  return strip.soft_cap > 0.0F ? 1.0F : strip.scale;
}

HWY_INLINE float max_of_row(const float* row, std::int64_t visible) {
  Vec even = splat(kLowest);
  Vec odd = even;
  for_each_visible(visible, [&](std::int64_t square, std::int64_t column,
                                std::int64_t count) TERRACE_VECTOR_BODY {
    Vec score = load(row + square * kStepElements + square_at(0, column));
    if (count < kLanes) {
      const auto seen = hn::FirstN(Lanes(), static_cast<std::size_t>(count));
      score = hn::IfThenElse(seen, score, splat(kLowest));
    }
    Vec& most = column / kLanes % 2 == 0 ? even : odd;
    most = hn::Max(score, most);
  });
  return hn::GetLane(hn::MaxOfLanes(Lanes(), hn::Max(even, odd)));
}

// Returns the sum of all lanes: lane i is added to the lane half the width away, again and again
// down to one lane.
HWY_INLINE float sum_of_lanes(Vec even, Vec odd) {
  alignas(64) float lanes[kLanes];
  hn::Store(hn::Add(even, odd), Lanes(), lanes);
  for (std::int64_t half = kLanes / 2; half > 0; half /= 2) {
    for (std::int64_t j = 0; j < half; ++j) lanes[j] += lanes[j + half];
  }
  return lanes[0];
}

// Clears the row's elements of a left strip from key `visible` on, to the end of that key's square
// and of the squares after it.
template <typename T>
HWY_INLINE void clear_from(T* row, std::int64_t visible, std::int64_t squares) {
  for (std::int64_t square = visible / kStrip; square < squares; ++square) {
    const std::int64_t begin = std::max<std::int64_t>(0, visible - square * kStrip);
    T* step = row + square * kStepElements;
    std::fill(step + begin, step + kStrip, T{});
  }
}

// Computes the weights of a row from the scale of its scores and its new maximum, and returns their
// sum.
template <typename T>
HWY_INLINE float weigh_row(const SoftmaxStrip& step, std::int64_t r, float score_scale, float max) {
  const float* scores = step.strip.scores + square_at(r, 0);
  T* weights = reinterpret_cast<T*>(step.weights) + r * kStrip;
  const std::int64_t visible = visible_columns(step.strip, r);
  const Vec scale = splat(score_scale);
  const Vec shift = splat(max);
  Vec even = hn::Zero(Lanes());
  Vec odd = even;
  for_each_visible(visible, [&](std::int64_t square, std::int64_t column,
                                std::int64_t count) TERRACE_VECTOR_BODY {
    const std::int64_t step_at = square * kStepElements;
    const Vec score = load(scores + step_at + square_at(0, column));
    const Vec weight = keep_first(exp_of(hn::Sub(hn::Mul(score, scale), shift)), count);
    store(weight, weights + step_at + column);
    Vec& sum = column / kLanes % 2 == 0 ? even : odd;
    sum = hn::Add(sum, weight);
  });
  clear_from(weights, visible, step.strip.squares());
  return sum_of_lanes(even, odd);
}

// Multiplies row r by `factor`, in squares of `width` columns that lie one behind the other.
HWY_INLINE void scale_row(float* squares, std::int64_t r, std::int64_t width, float factor) {
  for (std::int64_t d = 0; d < width; d += kLanes) {
    float* at = squares + d / kStrip * kStepElements + square_at(r, d % kStrip);
    store(hn::Mul(load(at), splat(factor)), at);
  }
}

template <typename T>
void softmax_strip_as(const SoftmaxStrip& step) {
  const float scale = scale_after_rule(step.strip);
  for (std::int64_t r = 0; r < step.strip.rows; ++r) {
    const std::int64_t visible = visible_columns(step.strip, r);
    if (visible <= hidden_columns(step.strip, r)) {
      clear_from(reinterpret_cast<T*>(step.weights) + r * kStrip, 0, step.strip.squares());
      continue;
    }
    const float most = max_of_row(step.strip.scores + square_at(r, 0), visible);
    const float max = std::max(step.max[r], scale * most);
    const float sum = weigh_row<T>(step, r, scale, max);
    const float kept = step.max[r] == max ? 1.0F : std::exp(step.max[r] - max);
    step.max[r] = max;
    step.sum[r] = step.sum[r] * kept + sum;
    if (!step.first && kept != 1.0F) scale_row(step.output, r, step.width, kept);
  }
  for (std::int64_t r = step.strip.rows; r < kStrip; ++r) {
    clear_from(reinterpret_cast<T*>(step.weights) + r * kStrip, 0, step.strip.squares());
  }
}

void softmax_strip_any(const SoftmaxStrip& step) {
  if (step.packed == DType::kF32) return softmax_strip_as<float>(step);
  softmax_strip_as<Bf16>(step);
}

template <typename T>
void softmax_finish_as(const SoftmaxStrip& last, const StripRows& target, float* log_sum_exp) {
  for (std::int64_t r = 0; r < target.rows; ++r) {
    T* row = reinterpret_cast<T*>(target.data) + r * target.stride;
    const Vec sum = splat(last.sum[r]);
    for (std::int64_t d = 0; d < target.width; d += kLanes) {
      const Vec output = load(last.output + d / kStrip * kStepElements + square_at(r, d % kStrip));
      store_n(hn::Div(output, sum), row + d, target.width - d);
    }
    log_sum_exp[r] = last.max[r] + std::log(last.sum[r]);
  }
}

void softmax_finish_any(const SoftmaxStrip& last, const StripRows& target, float* log_sum_exp) {
  if (target.dtype == DType::kF32) return softmax_finish_as<float>(last, target, log_sum_exp);
  softmax_finish_as<Bf16>(last, target, log_sum_exp);
}

// Vectors of two neighbouring queries, which are depths of a right strip.
struct RowPair {
  Vec first, second;
};

// Stores a vector of a pair of rows, at `column` of a step of a right strip.
HWY_INLINE void store_right(const RowPair& pair, float* step, std::int64_t r, std::int64_t column) {
  store(pair.first, step + r * kStrip + column);
  store(pair.second, step + (r + 1) * kStrip + column);
}
HWY_INLINE void store_right(const RowPair& pair, Bf16* step, std::int64_t r, std::int64_t column) {
  const auto low = bf16_words_nearest_even(pair.first);
  const auto high = hn::ShiftLeft<16>(bf16_words_nearest_even(pair.second));
  Bf16* at = step + column / 16 * 512 + r * 16 + column % 16 * 2;
  hn::StoreU(hn::Or(low, high), LaneWords(), reinterpret_cast<std::uint32_t*>(at));
}

template <typename T, bool Capped>
struct GradientRows {
  HWY_INLINE GradientRows(const GradientStrip& strip_op, std::int64_t first)
      : op(strip_op),
        r(first),
        scale(splat(op.strip.scale)),
        by_cap(splat(Capped ? 1.0F / op.strip.soft_cap : 0.0F)) {}

  const GradientStrip& op;
  std::int64_t r;
  Vec scale, by_cap, log_sum_exp[2], delta[2];
  std::int64_t visible[2];

  // Computes the weight and the score gradient of one of the rows, where it is visible.
  HWY_INLINE void compute(std::int64_t row, std::int64_t square, std::int64_t column, Vec& weight,
                          Vec& dscore) const {
    const std::int64_t at = square * kStepElements + square_at(r + row, column);
    const std::int64_t count = visible[row] - square * kStrip - column;
    const Vec score = load(op.strip.scores + at);
    const Vec scaled = Capped ? score : hn::Mul(score, scale);
    weight = exp_of(hn::Sub(scaled, log_sum_exp[row]));
    dscore = hn::Mul(hn::Mul(weight, hn::Sub(load(op.dweights + at), delta[row])), scale);
    if constexpr (Capped) {
      const Vec bent = hn::Mul(score, by_cap);
      dscore = hn::Mul(dscore, hn::NegMulAdd(bent, bent, splat(1.0F)));
      // A hidden score is infinite.
      dscore = hn::IfThenZeroElse(hn::Eq(weight, hn::Zero(Lanes())), dscore);
    }
    if (count < kLanes) {
      weight = keep_first(weight, count);
      dscore = keep_first(dscore, count);
    }
  }

  HWY_INLINE void run(std::int64_t square) const {
    T* weights = reinterpret_cast<T*>(op.weights) + square * op.right_stride;
    T* dscores = reinterpret_cast<T*>(op.dscores) + square * op.right_stride;
    T* left = reinterpret_cast<T*>(op.dscores_left) + square * kStepElements + r * kStrip;
#pragma GCC unroll 8
    for (std::int64_t v = 0; v < kVectors; ++v) {
      RowPair weight, dscore;
      compute(0, square, v * kLanes, weight.first, dscore.first);
      compute(1, square, v * kLanes, weight.second, dscore.second);
      store_right(weight, weights, r, v * kLanes);
      store_right(dscore, dscores, r, v * kLanes);
      store(dscore.first, left + v * kLanes);
      store(dscore.second, left + kStrip + v * kLanes);
    }
  }
};

template <typename T, bool Capped>
void softmax_gradient_as(const GradientStrip& op) {
  for (std::int64_t r = 0; r < kStrip; r += 2) {
    GradientRows<T, Capped> rows(op, r);
    for (std::int64_t i = 0; i < 2; ++i) {
      const bool there = r + i < op.strip.rows;
      rows.log_sum_exp[i] = splat(there ? op.log_sum_exp[r + i] : 0.0F);
      rows.delta[i] = splat(there ? op.delta[r + i] : 0.0F);
      rows.visible[i] = visible_columns(op.strip, r + i);
    }
    for (std::int64_t square = 0; square < op.strip.squares(); ++square) rows.run(square);
  }
}

void softmax_gradient_any(const GradientStrip& op) {
  if (op.strip.soft_cap > 0.0F || op.strip.first_keys != nullptr) apply_rule(op.strip);
  const bool is_capped = op.strip.soft_cap > 0.0F;
  if (op.packed == DType::kF32) {
    return is_capped ? softmax_gradient_as<float, true>(op) : softmax_gradient_as<float, false>(op);
  }
  return is_capped ? softmax_gradient_as<Bf16, true>(op) : softmax_gradient_as<Bf16, false>(op);
}

template <typename T>
void round_rows_as(const float* squares, const StripRows& target) {
  for (std::int64_t r = 0; r < target.rows; ++r) {
    T* row = reinterpret_cast<T*>(target.data) + r * target.stride;
    for (std::int64_t d = 0; d < target.width; d += kLanes) {
      store_n(load(squares + d / kStrip * kStepElements + square_at(r, d % kStrip)), row + d,
              target.width - d);
    }
  }
}

void round_rows_any(const float* squares, const StripRows& target) {
  if (target.dtype == DType::kF32) return round_rows_as<float>(squares, target);
  round_rows_as<Bf16>(squares, target);
}

template <typename T>
void round_columns_as(const float* squares, const StripRows& target) {
  const hn::RebindToSigned<Lanes> indices;
  const auto down = hn::Mul(hn::Iota(indices, 0), hn::Set(indices, 16));
  for (std::int64_t r = 0; r < target.rows; ++r) {
    T* row = reinterpret_cast<T*>(target.data) + r * target.stride;
    for (std::int64_t d = 0; d < target.width; d += kLanes) {
      const float* at = squares + d / kStrip * kStepElements + square_at(d % kStrip, r);
      store_n(hn::GatherIndex(Lanes(), at, down), row + d, target.width - d);
    }
  }
}

void round_columns_any(const float* squares, const StripRows& target) {
  if (target.dtype == DType::kF32) return round_columns_as<float>(squares, target);
  round_columns_as<Bf16>(squares, target);
}

template <typename T>
void row_dots_as(const RowDots& dots) {
  for (std::int64_t r = 0; r < dots.rows; ++r) {
    const T* a = static_cast<const T*>(dots.a) + r * dots.stride;
    const T* b = static_cast<const T*>(dots.b) + r * dots.stride;
    dots.sums[r] = sum_over(dots.width, [=](std::int64_t i, std::int64_t n) HWY_ATTR {
      return hn::Mul(load_n(a + i, n), load_n(b + i, n));
    });
  }
}

void row_dots_any(const RowDots& dots) {
  if (dots.dtype == DType::kF32) return row_dots_as<float>(dots);
  row_dots_as<Bf16>(dots);
}

}  // namespace HWY_NAMESPACE
}  // namespace terrace
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace terrace {

HWY_EXPORT(softmax_strip_any);
HWY_EXPORT(softmax_finish_any);
HWY_EXPORT(softmax_gradient_any);
HWY_EXPORT(round_rows_any);
HWY_EXPORT(round_columns_any);
HWY_EXPORT(row_dots_any);

void softmax_strip(const SoftmaxStrip& step) { HWY_DYNAMIC_DISPATCH(softmax_strip_any)(step); }

void softmax_finish(const SoftmaxStrip& last, const StripRows& target, float* log_sum_exp) {
  HWY_DYNAMIC_DISPATCH(softmax_finish_any)(last, target, log_sum_exp);
}

void softmax_gradient(const GradientStrip& gradient) {
  HWY_DYNAMIC_DISPATCH(softmax_gradient_any)(gradient);
}

void round_rows(const float* squares, const StripRows& target) {
  HWY_DYNAMIC_DISPATCH(round_rows_any)(squares, target);
}

void round_columns(const float* squares, const StripRows& target) {
  HWY_DYNAMIC_DISPATCH(round_columns_any)(squares, target);
}

void row_dots(const RowDots& dots) { HWY_DYNAMIC_DISPATCH(row_dots_any)(dots); }

}  // namespace terrace
#endif  // HWY_ONCE
