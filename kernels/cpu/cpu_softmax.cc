#include "kernels/cpu/cpu_softmax.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <type_traits>

#include "kernels/cpu/highway_targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/cpu_softmax.cc"
#include "hwy/foreach_target.h"

// After foreach_target.h, which compiles this file once per instruction set.
#include "hwy/highway.h"
#include "kernels/cpu/cpu_exp.inl"
#include "kernels/cpu/cpu_vector.inl"

HWY_BEFORE_NAMESPACE();
namespace terrace {
namespace HWY_NAMESPACE {

constexpr float kLowest = -std::numeric_limits<float>::infinity();

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

// Terms of a part: an fp32 sum of this many terms loses little, and the sums of the parts are added
// in fp64.
constexpr std::int64_t kExpPart = 2048;

// F: float where the exponentials take the place of the logits, const float where they do not.
template <typename F>
HWY_INLINE ExpRow exponentials_of(F* logits, std::int64_t elements) {
  ExpRow row;
  row.max = max_of(logits, elements);
  const Vec shift = splat(row.max);
  for (std::int64_t begin = 0; begin < elements; begin += kExpPart) {
    F* part = logits + begin;
    row.sum += sum_over(std::min(kExpPart, elements - begin),
                        [=](std::int64_t i, std::int64_t n) HWY_ATTR {
                          const Vec value = exp_of(hn::Sub(load_n(part + i, n, kLowest), shift));
                          if constexpr (!std::is_const_v<F>) store_n(value, part + i, n);
                          return value;
                        });
  }
  return row;
}

ExpRow exponentiate_row_any(float* logits, std::int64_t elements) {
  return exponentials_of(logits, elements);
}

ExpRow sum_row_any(const float* logits, std::int64_t elements) {
  return exponentials_of(logits, elements);
}

template <typename T>
void capped_gradients_as(const CappedRow& row, std::int64_t elements, T* target) {
  const Vec shift = splat(row.max);
  const Vec factor = splat(row.factor);
  const Vec reciprocal_cap = splat(1.0F / row.cap);
  const float* logits = row.logits;
  for_each_vector(elements, [=](std::int64_t i, std::int64_t n) HWY_ATTR {
    const Vec logit = load_n(logits + i, n);
    const Vec share = hn::Mul(logit, reciprocal_cap);
    const Vec slope = hn::NegMulAdd(share, share, splat(1.0F));
    store_n(hn::Mul(hn::Mul(exp_of(hn::Sub(logit, shift)), factor), slope), target + i, n);
  });
}

void capped_gradients_any(const CappedRow& row, std::int64_t elements, void* target, DType dtype) {
  if (dtype == DType::kF32) return capped_gradients_as(row, elements, static_cast<float*>(target));
  capped_gradients_as(row, elements, static_cast<Bf16*>(target));
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

HWY_EXPORT(exponentiate_row_any);
HWY_EXPORT(sum_row_any);
HWY_EXPORT(capped_gradients_any);
HWY_EXPORT(scale_row_any);
HWY_EXPORT(add_row_any);
HWY_EXPORT(assign_row_any);
HWY_EXPORT(add_column_sums_any);

ExpRow exponentiate_row(float* logits, std::int64_t elements) {
  return HWY_DYNAMIC_DISPATCH(exponentiate_row_any)(logits, elements);
}

ExpRow sum_row(const float* logits, std::int64_t elements) {
  return HWY_DYNAMIC_DISPATCH(sum_row_any)(logits, elements);
}

void capped_gradients(const CappedRow& row, std::int64_t elements, void* target, DType dtype) {
  HWY_DYNAMIC_DISPATCH(capped_gradients_any)(row, elements, target, dtype);
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
