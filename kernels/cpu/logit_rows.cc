#include "kernels/cpu/logit_rows.h"

#include <algorithm>
#include <limits>

#include "kernels/cpu/highway_targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/logit_rows.cc"
#include "hwy/foreach_target.h"

// After foreach_target.h, which compiles this file once per instruction set.
#include "hwy/highway.h"
#include "kernels/cpu/cpu_exp.inl"
#include "kernels/cpu/cpu_vector.inl"

HWY_BEFORE_NAMESPACE();
namespace terrace {
namespace HWY_NAMESPACE {

constexpr float kLowest = -std::numeric_limits<float>::infinity();
constexpr std::int64_t kVectors = kSumsRun / kLanes;

// Lanes of a run of logits that are past the row's end are lower than any logit.
HWY_INLINE Vec load_logits(const float* run, std::int64_t lane, std::int64_t columns) {
  if (columns - lane >= kLanes) return load(run + lane);
  return load_n(run + lane, std::max<std::int64_t>(0, columns - lane), kLowest);
}

HWY_INLINE float max_of_row(const ProductSums& logits, std::int64_t r) {
  Vec max[kVectors];
  for (std::int64_t j = 0; j < kVectors; ++j) max[j] = splat(kLowest);
  for (std::int64_t first = 0; first < logits.columns; first += kSumsRun) {
    const float* run = logits.run_at(r, first);
    for (std::int64_t j = 0; j < kVectors; ++j) {
      max[j] = hn::Max(load_logits(run, j * kLanes, logits.columns - first), max[j]);
    }
  }
  for (std::int64_t j = 1; j < kVectors; ++j) max[0] = hn::Max(max[0], max[j]);
  return hn::GetLane(hn::MaxOfLanes(Lanes(), max[0]));
}

// Column i goes to accumulator i mod 16, and the 16 are added by halving.
HWY_INLINE float sum_of_row(const ProductSums& logits, std::int64_t r, float max) {
  Vec sums[kVectors];
  for (std::int64_t j = 0; j < kVectors; ++j) sums[j] = hn::Zero(Lanes());
  for (std::int64_t first = 0; first < logits.columns; first += kSumsRun) {
    const float* run = logits.run_at(r, first);
    for (std::int64_t j = 0; j < kVectors; ++j) {
      const Vec logit = load_logits(run, j * kLanes, logits.columns - first);
      sums[j] = hn::Add(sums[j], exp_of(hn::Sub(logit, splat(max))));
    }
  }
  alignas(64) float lanes[kSumsRun];
  for (std::int64_t j = 0; j < kVectors; ++j) hn::Store(sums[j], Lanes(), lanes + j * kLanes);
  for (std::int64_t half = kSumsRun / 2; half > 0; half /= 2) {
    for (std::int64_t j = 0; j < half; ++j) lanes[j] += lanes[j + half];
  }
  return lanes[0];
}

void sum_rows_of_block(const ProductSums& logits, RowExponentials* out, std::int64_t stride) {
  for (std::int64_t r = 0; r < logits.rows; ++r) {
    const float max = max_of_row(logits, r);
    out[r * stride] = {max, sum_of_row(logits, r, max)};
  }
}

void round_block(const ProductSums& logits, std::int64_t column, const RowGradient* rows,
                 Bf16* target, std::int64_t stride) {
  for (std::int64_t r = 0; r < logits.rows; ++r) {
    const RowGradient& row = rows[r];
    Bf16* out = target + r * stride;
    if (row.target < 0) {
      std::fill_n(out, logits.columns, Bf16{});
      continue;
    }
    const Vec max = splat(row.max);
    const Vec factor = splat(row.factor);
    for (std::int64_t first = 0; first < logits.columns; first += kSumsRun) {
      const float* run = logits.run_at(r, first);
      const std::int64_t count = std::min(kSumsRun, logits.columns - first);
      for_each_vector(count, [=](std::int64_t i, std::int64_t n) HWY_ATTR {
        const Vec logit = load_n(run + i, n, kLowest);
        store_n(hn::Mul(exp_of(hn::Sub(logit, max)), factor), out + first + i, n);
      });
    }
    const std::int64_t target_column = row.target - column;
    if (target_column < 0 || target_column >= logits.columns) continue;
    out[target_column] = to_bf16_nearest_even(row.at_target);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace terrace
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace terrace {

HWY_EXPORT(sum_rows_of_block);
HWY_EXPORT(round_block);

void sum_exponentials(const ProductSums& logits, RowExponentials* out, std::int64_t stride) {
  HWY_DYNAMIC_DISPATCH(sum_rows_of_block)(logits, out, stride);
}

void round_logit_gradients(const ProductSums& logits, std::int64_t column, const RowGradient* rows,
                           Bf16* target, std::int64_t stride) {
  HWY_DYNAMIC_DISPATCH(round_block)(logits, column, rows, target, stride);
}

}  // namespace terrace
#endif  // HWY_ONCE
