// The exponential function and the hyperbolic tangent of the CPU kernels. Included once per Highway
// target, after kernels/cpu/cpu_vector.inl; hence it has the guard that Highway toggles instead of
// `#pragma once`.
#if defined(TERRACE_KERNELS_CPU_CPU_EXP_INL) == defined(HWY_TARGET_TOGGLE)
#ifdef TERRACE_KERNELS_CPU_CPU_EXP_INL
#undef TERRACE_KERNELS_CPU_CPU_EXP_INL
#else
#define TERRACE_KERNELS_CPU_CPU_EXP_INL
#endif

#include "kernels/cpu/cpu_vector.inl"

HWY_BEFORE_NAMESPACE();
namespace terrace {
namespace HWY_NAMESPACE {

inline constexpr float kExpLowest = -87.0F;  // its exp is not yet denormal
inline constexpr float kExpHighest = 88.0F;

// Returns exp(x) for x from kExpLowest to kExpHighest, within 2 u (u = 2^-24) with a fused
// multiplication and addition; exp of NaN is NaN. It is 2^n times the minimax polynomial of degree
// 6 on half a binade either side of 0, which is exact at 0.
HWY_INLINE Vec exp_in_range(Vec x) {
  constexpr float kLog2E = 1.4426950408889634F;
  constexpr float kLn2High = 0.693145751953125F;  // 17 bits: n times it is exact
  constexpr float kLn2Low = 1.428606765330187e-06F;
  // A sum with 1.5 * 2^23 is rounded to an integer, which is then the low bits of the sum.
  constexpr float kShift = 12582912.0F;
  const hn::RebindToSigned<Lanes> integers;
  const Vec shifted = hn::MulAdd(x, splat(kLog2E), splat(kShift));
  const Vec n = hn::Sub(shifted, splat(kShift));
  const Vec r = hn::NegMulAdd(n, splat(kLn2Low), hn::NegMulAdd(n, splat(kLn2High), x));
  Vec p = hn::MulAdd(splat(0.00138144669F), r, splat(0.00836878041F));
  p = hn::MulAdd(p, r, splat(0.0416683942F));
  p = hn::MulAdd(p, r, splat(0.166665201F));
  p = hn::MulAdd(p, r, splat(0.499999934F));
  p = hn::MulAdd(p, r, splat(1.0F));
  p = hn::MulAdd(p, r, splat(1.0F));
  const auto exponent = hn::ShiftLeft<23>(hn::BitCast(integers, shifted));
  const auto one = hn::BitCast(integers, splat(1.0F));
  return hn::Mul(p, hn::BitCast(Lanes(), hn::Add(exponent, one)));
}

// Returns exp(x) for all x up to kExpHighest; 0 below kExpLowest.
HWY_INLINE Vec exp_of(Vec x) {
  // The order of operands keeps a NaN.
  const Vec power = exp_in_range(hn::Max(splat(kExpLowest), x));
  return hn::IfThenZeroElse(hn::Lt(x, splat(kExpLowest)), power);
}

// Returns tanh(x) within 5 u; tanh of NaN is NaN. Up to 0.625 it is x + x^3 P(x^2), with P the
// polynomial that meets (tanh(x) / x - 1) / x^2 at the five Chebyshev points of x^2; there the
// other form, 1 - 2 / (1 + exp(2x)), would lose bits by cancellation. From 9.02 on tanh rounds to
// 1.
HWY_INLINE Vec tanh_of(Vec x) {
  constexpr float kNear = 0.625F;
  constexpr float kFar = 20.0F;
  const Vec size = hn::Abs(x);
  const Vec square = hn::Mul(x, x);
  Vec p = hn::MulAdd(splat(-0.0060967142F), square, splat(0.02099718F));
  p = hn::MulAdd(p, square, splat(-0.053850908F));
  p = hn::MulAdd(p, square, splat(0.13332769F));
  p = hn::MulAdd(p, square, splat(-0.33333328F));
  const Vec near = hn::MulAdd(hn::Mul(x, square), p, x);
  // The order of operands keeps a NaN.
  const Vec power = exp_in_range(hn::Min(splat(kFar), hn::Add(size, size)));
  const Vec far = hn::Sub(splat(1.0F), hn::Div(splat(2.0F), hn::Add(splat(1.0F), power)));
  return hn::IfThenElse(hn::Lt(size, splat(kNear)), near, hn::CopySign(far, x));
}

}  // namespace HWY_NAMESPACE
}  // namespace terrace
HWY_AFTER_NAMESPACE();

#endif  // per-target guard
