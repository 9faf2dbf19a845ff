#include "kernels/cpu/cpu_softmax.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/cpu/highway_targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/cpu_softmax.cc"
#include "hwy/foreach_target.h"

// After foreach_target.h, which compiles this file once per instruction set.
#include "hwy/contrib/math/math-inl.h"
#include "hwy/highway.h"
#include "kernels/cpu/cpu_vector.inl"

HWY_BEFORE_NAMESPACE();
namespace terrace {
namespace HWY_NAMESPACE {

constexpr float kLowest = -std::numeric_limits<float>::infinity();

// Highway's exponential turns NaN into 0, which would hide a diverged model.
HWY_INLINE Vec exp_of(Vec x) { return hn::IfThenElse(hn::IsNaN(x), x, hn::Exp(Lanes(), x)); }

HWY_INLINE float max_of(const float* row, std::int64_t elements) {
  Vec max[4] = {splat(kLowest), splat(kLowest), splat(kLowest), splat(kLowest)};
  std::int64_t i = 0;
  for (; i + 4 * kLanes <= elements; i += 4 * kLanes) {
    for (std::int64_t j = 0; j < 4; ++j) max[j] = hn::Max(load(row + i + j * kLanes), max[j]);
  }
  for (; i < elements; i += kLanes)
    max[0] = hn::Max(load_n(row + i, elements - i, kLowest), max[0]);
  const Vec most = hn::Max(hn::Max(max[0], max[1]), hn::Max(max[2], max[3]));
  return hn::GetLane(hn::MaxOfLanes(Lanes(), most));
}

template <typename T>
HWY_INLINE void fill_zero_from(T* row, std::int64_t begin, std::int64_t end) {
  std::fill(row + begin, row + end, T{});
}

HWY_INLINE std::int64_t visible_columns(const ScoreBlock& block, std::int64_t row) {
  return std::min(block.columns, block.visible + row);
}

template <typename T>
void softmax_step_as(const SoftmaxStep& step) {
  const ScoreBlock& block = step.block;
  const Vec scale = splat(block.scale);
  for (std::int64_t r = 0; r < block.rows; ++r) {
    const std::int64_t visible = visible_columns(block, r);
    const float* scores = block.scores + r * block.stride;
    T* weights = static_cast<T*>(step.weights) + r * block.stride;
    const float max = std::max(step.max[r], block.scale * max_of(scores, visible));
    const Vec shift = splat(max);
    const float sum = sum_over(visible, [=](std::int64_t i, std::int64_t n) HWY_ATTR {
      const Vec score = load_n(scores + i, n, kLowest);
      const Vec weight = exp_of(hn::Sub(hn::Mul(score, scale), shift));
      store_n(weight, weights + i, n);
      return weight;
    });
    fill_zero_from(weights, visible, block.columns);
    const float kept = step.max[r] == max ? 1.0F : std::exp(step.max[r] - max);
    step.max[r] = max;
    step.sum[r] = step.sum[r] * kept + sum;
    if (kept == 1.0F) continue;
    float* output = step.output + r * step.width;
    for_each_vector(step.width, [=](std::int64_t i, std::int64_t n) HWY_ATTR {
      store_n(hn::Mul(load_n(output + i, n), splat(kept)), output + i, n);
    });
  }
}

void softmax_step_any(const SoftmaxStep& step) {
  if (step.dtype == DType::kF32) return softmax_step_as<float>(step);
  softmax_step_as<Bf16>(step);
}

template <typename T>
void softmax_finish_as(const SoftmaxFinish& finish) {
  for (std::int64_t r = 0; r < finish.rows; ++r) {
    const float* output = finish.output + r * finish.width;
    T* target = static_cast<T*>(finish.target) + r * finish.target_stride;
    const Vec sum = splat(finish.sum[r]);
    for_each_vector(finish.width, [=](std::int64_t i, std::int64_t n) HWY_ATTR {
      store_n(hn::Div(load_n(output + i, n), sum), target + i, n);
    });
    finish.log_sum_exp[r] = finish.max[r] + std::log(finish.sum[r]);
  }
}

void softmax_finish_any(const SoftmaxFinish& finish) {
  if (finish.dtype == DType::kF32) return softmax_finish_as<float>(finish);
  softmax_finish_as<Bf16>(finish);
}

template <typename T>
void softmax_gradient_as(const SoftmaxGradient& gradient) {
  const ScoreBlock& block = gradient.block;
  const Vec scale = splat(block.scale);
  for (std::int64_t r = 0; r < block.rows; ++r) {
    const std::int64_t visible = visible_columns(block, r);
    const float* scores = block.scores + r * block.stride;
    const float* dweights = gradient.dweights + r * block.stride;
    T* weights = static_cast<T*>(gradient.weights) + r * block.stride;
    T* dscores = static_cast<T*>(gradient.dscores) + r * block.stride;
    const Vec log_sum_exp = splat(gradient.log_sum_exp[r]);
    const Vec delta = splat(gradient.delta[r]);
    for_each_vector(visible, [=](std::int64_t i, std::int64_t n) HWY_ATTR {
      const Vec weight = exp_of(hn::Sub(hn::Mul(load_n(scores + i, n), scale), log_sum_exp));
      const Vec change = hn::Sub(load_n(dweights + i, n), delta);
      store_n(weight, weights + i, n);
      store_n(hn::Mul(hn::Mul(weight, change), scale), dscores + i, n);
    });
    fill_zero_from(weights, visible, block.columns);
    fill_zero_from(dscores, visible, block.columns);
  }
}

void softmax_gradient_any(const SoftmaxGradient& gradient) {
  if (gradient.dtype == DType::kF32) return softmax_gradient_as<float>(gradient);
  softmax_gradient_as<Bf16>(gradient);
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

template <typename T>
void scale_row_as(const float* source, float factor, std::int64_t elements, T* target) {
  const Vec factors = splat(factor);
  for_each_vector(elements, [=](std::int64_t i, std::int64_t n) HWY_ATTR {
    store_n(hn::Mul(load_n(source + i, n), factors), target + i, n);
  });
}

void scale_row_any(const float* source, float factor, std::int64_t elements, void* target,
                   DType dtype) {
  if (dtype == DType::kF32) {
    return scale_row_as(source, factor, elements, static_cast<float*>(target));
  }
  scale_row_as(source, factor, elements, static_cast<Bf16*>(target));
}

void round_rows_any(const RoundRows& round) {
  for (std::int64_t r = 0; r < round.rows; ++r) {
    const std::int64_t offset =
        r * round.target_stride * static_cast<std::int64_t>(size_of(round.dtype));
    scale_row_any(round.source + r * round.width, 1.0F, round.width,
                  static_cast<std::byte*>(round.target) + offset, round.dtype);
  }
}

// An fp32 sum of so many terms loses little; the sums of the parts are added in fp64.
constexpr std::int64_t kExpPart = 2048;

ExpRow exponentiate_row_any(float* logits, std::int64_t elements) {
  ExpRow row;
  row.max = max_of(logits, elements);
  const Vec shift = splat(row.max);
  for (std::int64_t begin = 0; begin < elements; begin += kExpPart) {
    float* part = logits + begin;
    row.sum += sum_over(std::min(kExpPart, elements - begin),
                        [=](std::int64_t i, std::int64_t n) HWY_ATTR {
                          const Vec value = exp_of(hn::Sub(load_n(part + i, n, kLowest), shift));
                          store_n(value, part + i, n);
                          return value;
                        });
  }
  return row;
}

void add_row_any(const float* source, std::int64_t elements, float* target) {
  for_each_vector(elements, [=](std::int64_t i, std::int64_t n) HWY_ATTR {
    store_n(hn::Add(load_n(target + i, n), load_n(source + i, n)), target + i, n);
  });
}

void assign_row_any(const float* source, std::int64_t elements, float* target) {
  for_each_vector(elements, [=](std::int64_t i, std::int64_t n) HWY_ATTR {
    store_n(hn::Add(splat(0.0F), load_n(source + i, n)), target + i, n);
  });
}

template <typename T>
void add_column_sums_as(const ColumnSums& columns) {
  for (std::int64_t r = 0; r < columns.rows; ++r) {
    const T* row = static_cast<const T*>(columns.source) + r * columns.stride;
    float* sums = columns.sums;
    for_each_vector(columns.columns, [=](std::int64_t i, std::int64_t n) HWY_ATTR {
      store_n(hn::Add(load_n(sums + i, n), load_n(row + i, n)), sums + i, n);
    });
  }
}

void add_column_sums_any(const ColumnSums& columns) {
  if (columns.dtype == DType::kF32) return add_column_sums_as<float>(columns);
  add_column_sums_as<Bf16>(columns);
}

}  // namespace HWY_NAMESPACE
}  // namespace terrace
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace terrace {

HWY_EXPORT(softmax_step_any);
HWY_EXPORT(softmax_finish_any);
HWY_EXPORT(softmax_gradient_any);
HWY_EXPORT(row_dots_any);
HWY_EXPORT(round_rows_any);
HWY_EXPORT(exponentiate_row_any);
HWY_EXPORT(scale_row_any);
HWY_EXPORT(add_row_any);
HWY_EXPORT(assign_row_any);
HWY_EXPORT(add_column_sums_any);

void softmax_step(const SoftmaxStep& step) { HWY_DYNAMIC_DISPATCH(softmax_step_any)(step); }

void softmax_finish(const SoftmaxFinish& finish) {
  HWY_DYNAMIC_DISPATCH(softmax_finish_any)(finish);
}

void softmax_gradient(const SoftmaxGradient& gradient) {
  HWY_DYNAMIC_DISPATCH(softmax_gradient_any)(gradient);
}

void row_dots(const RowDots& dots) { HWY_DYNAMIC_DISPATCH(row_dots_any)(dots); }

void round_rows(const RoundRows& round) { HWY_DYNAMIC_DISPATCH(round_rows_any)(round); }

ExpRow exponentiate_row(float* logits, std::int64_t elements) {
  return HWY_DYNAMIC_DISPATCH(exponentiate_row_any)(logits, elements);
}

void scale_row(const float* source, float factor, std::int64_t elements, void* target,
               DType dtype) {
  HWY_DYNAMIC_DISPATCH(scale_row_any)(source, factor, elements, target, dtype);
}

void add_row(const float* source, std::int64_t elements, float* target) {
  HWY_DYNAMIC_DISPATCH(add_row_any)(source, elements, target);
}

void assign_row(const float* source, std::int64_t elements, float* target) {
  HWY_DYNAMIC_DISPATCH(assign_row_any)(source, elements, target);
}

void add_column_sums(const ColumnSums& columns) {
  HWY_DYNAMIC_DISPATCH(add_column_sums_any)(columns);
}

}  // namespace terrace
#endif  // HWY_ONCE
