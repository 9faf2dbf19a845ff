#include "kernels/cpu/product_result.h"

#include "base/check.h"
#include "kernels/cpu/highway_targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/product_result.cc"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
#include "kernels/cpu/cpu_vector.inl"

HWY_BEFORE_NAMESPACE();
namespace terrace {
namespace HWY_NAMESPACE {

// Calls body(sums, column, n) for the vectors of row r.
template <typename Body>
HWY_INLINE void for_each_sum(const ProductSums& sums, std::int64_t r, const Body& body) {
  for (std::int64_t first = 0; first < sums.columns; first += kSumsRun) {
    const float* run = sums.run_at(r, first);
    for_each_vector(std::min(kSumsRun, sums.columns - first),
                    [&](std::int64_t i, std::int64_t n)
                        TERRACE_VECTOR_BODY { body(load_n(run + i, n), first + i, n); });
  }
}

template <typename T, typename B>
void round_sums(const ProductSums& sums, const ProductTarget& target) {
  const B* bias = reinterpret_cast<const B*>(target.bias);
  for (std::int64_t r = 0; r < sums.rows; ++r) {
    T* row = reinterpret_cast<T*>(target.data) + r * target.stride;
    for_each_sum(sums, r, [=](Vec sum, std::int64_t column, std::int64_t n) TERRACE_VECTOR_BODY {
      if (bias != nullptr) sum = hn::Add(sum, load_n(bias + column, n));
      store_n(sum, row + column, n);
    });
  }
}

template <bool Accumulate>
void join_gradient(const ProductSums& sums, const ProductTarget& target) {
  for (std::int64_t r = 0; r < sums.rows; ++r) {
    float* row = reinterpret_cast<float*>(target.data) + r * target.stride;
    for_each_sum(sums, r, [=](Vec sum, std::int64_t column, std::int64_t n) TERRACE_VECTOR_BODY {
      const Vec before = Accumulate ? load_n(row + column, n) : splat(0.0F);
      store_n(hn::Add(before, sum), row + column, n);
    });
  }
}

void store_any(const ProductSums& sums, const ProductTarget& target) {
  if (target.gradient.has_value()) {
    if (*target.gradient == GradientMode::kAccumulate) return join_gradient<true>(sums, target);
    return join_gradient<false>(sums, target);
  }
  const bool wide_bias = target.bias_dtype == DType::kF32;
  if (target.dtype == DType::kF32) {
    return wide_bias ? round_sums<float, float>(sums, target)
                     : round_sums<float, Bf16>(sums, target);
  }
  return wide_bias ? round_sums<Bf16, float>(sums, target) : round_sums<Bf16, Bf16>(sums, target);
}

}  // namespace HWY_NAMESPACE
}  // namespace terrace
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace terrace {

HWY_EXPORT(store_any);

void store_product(const ProductSums& sums, const ProductTarget& target) {
  TERRACE_CHECK(target.dtype == DType::kF32 || target.dtype == DType::kBF16);
  TERRACE_CHECK(!target.gradient.has_value() || target.dtype == DType::kF32);
  HWY_DYNAMIC_DISPATCH(store_any)(sums, target);
}

}  // namespace terrace
#endif  // HWY_ONCE
