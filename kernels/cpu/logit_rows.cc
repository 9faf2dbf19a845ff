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

// Loads lanes of a run of logits; lanes past the row's end get a value lower than any logit.
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

// Returns the sum of exp(logit - max) over a row: column i goes to accumulator i mod 16, and the 16
// are added by halving.
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

template <bool Capped>
HWY_INLINE Vec gradient_of(Vec logit, const RowGradient& row, Vec reciprocal_cap) {
  const Vec gradient = hn::Mul(exp_of(hn::Sub(logit, splat(row.max))), splat(row.factor));
  if constexpr (!Capped) return gradient;
  const Vec share = hn::Mul(logit, reciprocal_cap);
  return hn::Mul(gradient, hn::NegMulAdd(share, share, splat(1.0F)));
}

template <bool Capped>
void round_block_as(const ProductSums& logits, std::int64_t column, const LogitGradients& to) {
  const Vec reciprocal_cap = splat(Capped ? 1.0F / to.cap : 0.0F);
  for (std::int64_t r = 0; r < logits.rows; ++r) {
    const RowGradient row = to.rows[r];
    Bf16* out = to.target + r * to.stride;
    if (row.target < 0) {
      std::fill_n(out, logits.columns, Bf16{});
      continue;
    }
    for (std::int64_t first = 0; first < logits.columns; first += kSumsRun) {
      const float* run = logits.run_at(r, first);
      const std::int64_t count = std::min(kSumsRun, logits.columns - first);
      // Lanes past the end get a logit whose exponential is 0; a capped logit has to be finite.
      const float fill = Capped ? 0.0F : kLowest;
      for_each_vector(count, [=](std::int64_t i, std::int64_t n) HWY_ATTR {
        const Vec logit = load_n(run + i, n, fill);
        store_n(gradient_of<Capped>(logit, row, reciprocal_cap), out + first + i, n);
      });
    }
    const std::int64_t target_column = row.target - column;
    if (target_column < 0 || target_column >= logits.columns) continue;
    out[target_column] = to_bf16_nearest_even(row.at_target);
  }
}

void round_block(const ProductSums& logits, std::int64_t column, const LogitGradients& to) {
  if (to.cap > 0.0F) return round_block_as<true>(logits, column, to);
  round_block_as<false>(logits, column, to);
}

void map_row(const LogitMap& map, float* logits, std::int64_t elements) {
  const Vec scale = splat(map.scale);
  if (map.cap <= 0.0F) {
    return for_each_vector(elements, [=](std::int64_t i, std::int64_t n) HWY_ATTR {
      store_n(hn::Mul(scale, load_n(logits + i, n)), logits + i, n);
    });
  }
  const Vec cap = splat(map.cap);
  for_each_vector(elements, [=](std::int64_t i, std::int64_t n) HWY_ATTR {
    const Vec scaled = hn::Mul(scale, load_n(logits + i, n));
    store_n(hn::Mul(cap, tanh_of(hn::Div(scaled, cap))), logits + i, n);
  });
}

void map_block(const LogitMap& map, const ProductSums& logits) {
  for (std::int64_t r = 0; r < logits.rows; ++r) {
    for (std::int64_t first = 0; first < logits.columns; first += kSumsRun) {
      map_row(map, logits.run_at(r, first), std::min(kSumsRun, logits.columns - first));
    }
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace terrace
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace terrace {

HWY_EXPORT(sum_rows_of_block);
HWY_EXPORT(round_block);
HWY_EXPORT(map_row);
HWY_EXPORT(map_block);

void sum_exponentials(const ProductSums& logits, RowExponentials* out, std::int64_t stride) {
  HWY_DYNAMIC_DISPATCH(sum_rows_of_block)(logits, out, stride);
}

void round_logit_gradients(const ProductSums& logits, std::int64_t column,
                           const LogitGradients& to) {
  HWY_DYNAMIC_DISPATCH(round_block)(logits, column, to);
}

void map_logits(const LogitMap& map, float* logits, std::int64_t elements) {
  HWY_DYNAMIC_DISPATCH(map_row)(map, logits, elements);
}

void map_logits(const LogitMap& map, const ProductSums& logits) {
  HWY_DYNAMIC_DISPATCH(map_block)(map, logits);
}

}  // namespace terrace
#endif  // HWY_ONCE
