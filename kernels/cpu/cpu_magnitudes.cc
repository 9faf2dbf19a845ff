#include "kernels/cpu/cpu_magnitudes.h"

#include <algorithm>
#include <cmath>

#include "kernels/cpu/highway_targets.h"
#include "kernels/cpu/parallel_blocks.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/cpu_magnitudes.cc"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
#include "kernels/cpu/cpu_vector.inl"

HWY_BEFORE_NAMESPACE();
namespace terrace {
namespace HWY_NAMESPACE {

template <typename T>
HWY_INLINE void scale_columns_as(const ScaleColumns& op, std::int64_t begin, std::int64_t end) {
  const float* const factors = op.factors.as<const float>();
  const T* const bias = op.bias.empty() ? nullptr : op.bias.as<const T>();
  for (std::int64_t row = begin; row < end; ++row) {
    const T* const x = reinterpret_cast<const T*>(op.x.data) + row * op.x.stride;
    T* const y = reinterpret_cast<T*>(op.y.data) + row * op.y.stride;
    const T* const times = op.times.empty()
                               ? nullptr
                               : reinterpret_cast<const T*>(op.times.data) + row * op.times.stride;
    for_each_vector(op.y.width, [=](std::int64_t i, std::int64_t n) TERRACE_VECTOR_BODY {
      const Vec add = bias == nullptr ? hn::Zero(Lanes()) : load_n(bias + i, n);
      const Vec rest = hn::Sub(load_n(x + i, n), add);
      const Vec factor = load_n(factors + i, n);
      const Vec scaled = times == nullptr ? hn::Add(hn::Mul(factor, rest), add)
                                          : hn::Mul(factor, hn::Mul(rest, load_n(times + i, n)));
      store_n(scaled, y + i, n);
    });
  }
}

void scale_columns_any(const ScaleColumns& op, std::int64_t begin, std::int64_t end) {
  if (op.y.dtype == DType::kF32) return scale_columns_as<float>(op, begin, end);
  scale_columns_as<Bf16>(op, begin, end);
}

}  // namespace HWY_NAMESPACE
}  // namespace terrace
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace terrace {
namespace {

// Computes one number for each column: little work compared with the product that made the squares.
template <typename T>
void magnitude_factors_as(const MagnitudeFactors& op) {
  for (std::int64_t i = 0; i < op.magnitude.elements(); ++i) {
    const float exact = std::sqrt(op.squares.as<const float>()[i]);
    float norm = exact;
    if constexpr (sizeof(T) == sizeof(Bf16)) norm = to_float(to_bf16_nearest_even(exact));
    const float magnitude = to_float(op.magnitude.as<const T>()[i]);
    op.inverses.as<float>()[i] = norm > 0.0F ? 1.0F / norm : 0.0F;
    op.factors.as<float>()[i] = norm > 0.0F ? magnitude / norm : 0.0F;
  }
}

}  // namespace

HWY_EXPORT(scale_columns_any);

void cpu_magnitude_factors(const KernelContext& context, const MagnitudeFactors& op) {
  TERRACE_CHECK(op.magnitude.dtype == DType::kF32 || op.magnitude.dtype == DType::kBF16);
  TERRACE_CHECK_EQ(op.squares.elements(), op.magnitude.elements());
  context.workers->parallel_for(1, [&](std::int64_t, int) {
    if (op.magnitude.dtype == DType::kF32) return magnitude_factors_as<float>(op);
    magnitude_factors_as<Bf16>(op);
  });
}

void cpu_scale_columns(const KernelContext& context, const ScaleColumns& op) {
  TERRACE_CHECK(op.y.dtype == DType::kF32 || op.y.dtype == DType::kBF16);
  TERRACE_CHECK(op.x.dtype == op.y.dtype);
  TERRACE_CHECK_EQ(op.x.rows, op.y.rows);
  TERRACE_CHECK_EQ(op.x.width, op.y.width);
  TERRACE_CHECK_EQ(op.factors.elements(), op.x.width);
  const std::int64_t rows =
      std::max<std::int64_t>(1, kElementBlock / std::max<std::int64_t>(1, op.y.width));
  for_each_block(context, op.y.rows, rows, [&](std::int64_t begin, std::int64_t end) {
    HWY_DYNAMIC_DISPATCH(scale_columns_any)(op, begin, end);
  });
}

}  // namespace terrace
#endif  // HWY_ONCE
