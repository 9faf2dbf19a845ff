// The names of optim/rule_number.h for vectors of elements. Included once per Highway target, after
// kernels/cpu/cpu_vector.inl; hence the guard that Highway toggles instead of `#pragma once`.
#if defined(TERRACE_OPTIM_CPU_RULE_NUMBER_INL) == defined(HWY_TARGET_TOGGLE)
#ifdef TERRACE_OPTIM_CPU_RULE_NUMBER_INL
#undef TERRACE_OPTIM_CPU_RULE_NUMBER_INL
#else
#define TERRACE_OPTIM_CPU_RULE_NUMBER_INL
#endif

#include <cstddef>

#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace terrace {
namespace HWY_NAMESPACE {

using Number = Vec;

HWY_INLINE Number number(float value) { return splat(value); }
HWY_INLINE Number fused(Number a, Number b, Number c) { return hn::MulAdd(a, b, c); }
HWY_INLINE Number square_root(Number x) { return hn::Sqrt(x); }
HWY_INLINE Number sign(Number x) {
  const auto has_size = hn::Gt(hn::Abs(x), hn::Zero(Lanes()));
  return hn::IfThenElse(has_size, hn::CopySign(splat(1.0F), x), x);
}

template <std::size_t Slots>
struct Element {
  Number p;
  Number slots[Slots == 0 ? 1 : Slots];
};

}  // namespace HWY_NAMESPACE
}  // namespace terrace
HWY_AFTER_NAMESPACE();

#endif  // per-target guard
