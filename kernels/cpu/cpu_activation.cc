#include "kernels/cpu/cpu_activation.h"

#include <limits>

#include "kernels/cpu/highway_targets.h"
#include "kernels/cpu/parallel_blocks.h"
#include "kernels/row_range.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/cpu_activation.cc"
// clang-format off: foreach_target.h comes first
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
#include "kernels/cpu/cpu_exp.inl"
#include "kernels/cpu/cpu_vector.inl"
// clang-format on

HWY_BEFORE_NAMESPACE();
namespace terrace {
namespace HWY_NAMESPACE {

// Returns 1 / (1 + exp(x)) for x from kExpLowest to kExpHighest.
HWY_INLINE Vec logistic_of_negated(Vec x) {
  return hn::Div(splat(1.0F), hn::Add(splat(1.0F), exp_in_range(x)));
}

// Returns 1 / (1 + exp(-x)), at least 6e-39. The order of operands keeps a NaN.
HWY_INLINE Vec logistic(Vec x) {
  return logistic_of_negated(hn::Max(splat(kExpLowest), hn::Min(splat(kExpHighest), hn::Neg(x))));
}

// gelu_new(x) = x (1 + tanh(u)) / 2 = x logistic(2u), u = sqrt(2/pi) (x + 0.044715 x^3). The gate
// is computed from x clamped to [-9.95, 9.95]: at the ends it is 1 to the last bit or 3e-38, and
// exp(2u) can still be computed.
struct GeluGate {
  Vec value;  // logistic(2u)
  Vec slope;  // d(2u)/dx
};

HWY_INLINE GeluGate gelu_gate(Vec x) {
  constexpr float kCut = 9.95F;
  constexpr float kLinear = 1.5957691216057308F;   // 2 sqrt(2/pi)
  constexpr float kCubic = 0.071354816272260241F;  // kLinear * 0.044715
  const Vec cut = hn::Min(splat(kCut), hn::Max(splat(-kCut), x));
  const Vec square = hn::Mul(cut, cut);
  const Vec negated = hn::Mul(cut, hn::NegMulAdd(square, splat(kCubic), splat(-kLinear)));
  return {logistic_of_negated(negated), hn::MulAdd(square, splat(3 * kCubic), splat(kLinear))};
}

// Activations of a gate: value() alone, and value and slope for the gradient.
struct Activated {
  Vec value, slope;
};

// silu' = s + g s (1 - s) with s = logistic(g).
struct PlainUp;
struct Silu {
  using Up = PlainUp;
  HWY_INLINE static Vec value(Vec g) { return hn::Mul(g, logistic(g)); }
  HWY_INLINE static Activated both(Vec g) {
    const Vec s = logistic(g);
    const Vec silu = hn::Mul(g, s);
    return {silu, hn::Add(s, hn::Mul(silu, hn::Sub(splat(1.0F), s)))};
  }
};

struct Gelu {
  using Up = PlainUp;
  HWY_INLINE static Vec value(Vec x) { return hn::Mul(x, gelu_gate(x).value); }
  HWY_INLINE static Activated both(Vec x) {
    const GeluGate gate = gelu_gate(x);
    const Vec bend = hn::Mul(gate.value, hn::Sub(splat(1.0F), gate.value));
    const Vec slope = hn::Add(gate.value, hn::Mul(x, hn::Mul(bend, gate.slope)));
    return {hn::Mul(x, gate.value), slope};
  }
};

// Returns the lanes of x where it is neither below `low` nor above `high`, and zero elsewhere. A
// NaN stays.
HWY_INLINE Vec zero_outside(Vec x, Vec limited, float low, float high) {
  const auto is_outside = hn::Or(hn::Lt(limited, splat(low)), hn::Gt(limited, splat(high)));
  return hn::IfThenZeroElse(is_outside, x);
}

// The factor that the activation is multiplied by, and what its gradient is multiplied by.
struct PlainUp {
  HWY_INLINE static Vec value(Vec up) { return up; }
  HWY_INLINE static Vec gradient(Vec /*up*/, Vec dfactor) { return dfactor; }
};
struct ClampedUp {
  HWY_INLINE static Vec value(Vec up) {
    const Vec clamped = hn::Max(splat(-kGateClamp), hn::Min(splat(kGateClamp), up));
    return hn::Add(clamped, splat(1.0F));
  }
  HWY_INLINE static Vec gradient(Vec up, Vec dfactor) {
    return zero_outside(dfactor, up, -kGateClamp, kGateClamp);
  }
};

// g logistic(k g) of the clamped gate g.
struct ClampedGate {
  using Up = ClampedUp;
  HWY_INLINE static Vec value(Vec gate) {
    const Vec g = hn::Min(splat(kGateClamp), gate);
    return hn::Mul(g, logistic(hn::Mul(splat(kGateSlope), g)));
  }
  HWY_INLINE static Activated both(Vec gate) {
    const Vec g = hn::Min(splat(kGateClamp), gate);
    const Vec inner = hn::Mul(splat(kGateSlope), g);
    const Vec s = logistic(inner);
    const Vec slope = hn::Mul(s, hn::MulAdd(inner, hn::Sub(splat(1.0F), s), splat(1.0F)));
    const float lowest = -std::numeric_limits<float>::infinity();
    return {hn::Mul(g, s), zero_outside(slope, gate, lowest, kGateClamp)};
  }
};

template <typename Activation, typename T>
void glu_forward_rows(const GluForward& op, std::int64_t begin, std::int64_t end) {
  const std::int64_t I = op.y.elements() / op.y.shape[0];
  for (std::int64_t r = begin; r < end; ++r) {
    const T* gate = op.gate_up.as<const T>() + r * 2 * I;
    const T* up = gate + I;
    T* y = op.y.as<T>() + r * I;
    for_each_vector(I, [=](std::int64_t i, std::int64_t n) TERRACE_VECTOR_BODY {
      const Vec factor = Activation::Up::value(load_n(up + i, n));
      store_n(hn::Mul(Activation::value(load_n(gate + i, n)), factor), y + i, n);
    });
  }
}

template <typename T>
void glu_forward_as(const GluForward& op, std::int64_t begin, std::int64_t end) {
  switch (op.activation) {
    case GateActivation::kSilu:
      return glu_forward_rows<Silu, T>(op, begin, end);
    case GateActivation::kGeluTanh:
      return glu_forward_rows<Gelu, T>(op, begin, end);
    case GateActivation::kClampedGate:
      return glu_forward_rows<ClampedGate, T>(op, begin, end);
  }
}

void glu_forward(const GluForward& op, std::int64_t begin, std::int64_t end) {
  if (op.y.dtype == DType::kF32) return glu_forward_as<float>(op, begin, end);
  glu_forward_as<Bf16>(op, begin, end);
}

template <typename Activation, typename T>
void glu_backward_rows(const GluBackward& op, std::int64_t begin, std::int64_t end) {
  const std::int64_t I = op.dy.elements() / op.dy.shape[0];
  for (std::int64_t r = begin; r < end; ++r) {
    const T* gate = op.gate_up.as<const T>() + r * 2 * I;
    const T* up = gate + I;
    const T* dy = op.dy.as<const T>() + r * I;
    T* dgate = op.dgate_up.as<T>() + r * 2 * I;
    T* dup = dgate + I;
    for_each_vector(I, [=](std::int64_t i, std::int64_t n) TERRACE_VECTOR_BODY {
      const Vec g = load_n(gate + i, n);
      const Vec dy_i = load_n(dy + i, n);
      const Vec up_i = load_n(up + i, n);
      const Activated at = Activation::both(g);
      store_n(hn::Mul(hn::Mul(dy_i, Activation::Up::value(up_i)), at.slope), dgate + i, n);
      store_n(Activation::Up::gradient(up_i, hn::Mul(dy_i, at.value)), dup + i, n);
    });
  }
}

template <typename T>
void glu_backward_as(const GluBackward& op, std::int64_t begin, std::int64_t end) {
  switch (op.activation) {
    case GateActivation::kSilu:
      return glu_backward_rows<Silu, T>(op, begin, end);
    case GateActivation::kGeluTanh:
      return glu_backward_rows<Gelu, T>(op, begin, end);
    case GateActivation::kClampedGate:
      return glu_backward_rows<ClampedGate, T>(op, begin, end);
  }
}

void glu_backward(const GluBackward& op, std::int64_t begin, std::int64_t end) {
  if (op.dy.dtype == DType::kF32) return glu_backward_as<float>(op, begin, end);
  glu_backward_as<Bf16>(op, begin, end);
}

template <typename T>
void gelu_forward_range(const GeluForward& op, std::int64_t begin, std::int64_t end) {
  const T* x = op.x.as<const T>() + begin;
  T* y = op.y.as<T>() + begin;
  for_each_vector(end - begin, [=](std::int64_t i, std::int64_t n) TERRACE_VECTOR_BODY {
    const Vec x_i = load_n(x + i, n);
    store_n(Gelu::value(x_i), y + i, n);
  });
}

void gelu_forward(const GeluForward& op, std::int64_t begin, std::int64_t end) {
  if (op.x.dtype == DType::kF32) return gelu_forward_range<float>(op, begin, end);
  gelu_forward_range<Bf16>(op, begin, end);
}

template <typename T>
void gelu_backward_range(const GeluBackward& op, std::int64_t begin, std::int64_t end) {
  const T* x = op.x.as<const T>() + begin;
  const T* dy = op.dy.as<const T>() + begin;
  T* dx = op.dx.as<T>() + begin;
  for_each_vector(end - begin, [=](std::int64_t i, std::int64_t n) TERRACE_VECTOR_BODY {
    const Vec x_i = load_n(x + i, n);
    store_n(hn::Mul(load_n(dy + i, n), Gelu::both(x_i).slope), dx + i, n);
  });
}

void gelu_backward(const GeluBackward& op, std::int64_t begin, std::int64_t end) {
  if (op.x.dtype == DType::kF32) return gelu_backward_range<float>(op, begin, end);
  gelu_backward_range<Bf16>(op, begin, end);
}

}  // namespace HWY_NAMESPACE
}  // namespace terrace
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace terrace {

HWY_EXPORT(glu_forward);
HWY_EXPORT(glu_backward);
HWY_EXPORT(gelu_forward);
HWY_EXPORT(gelu_backward);

namespace {

constexpr std::int64_t kRowBlock = 8;

void check_compute_type(const TensorView& tensor) {
  TERRACE_CHECK(tensor.dtype == DType::kF32 || tensor.dtype == DType::kBF16);
}

}  // namespace

void cpu_glu_forward(const KernelContext& context, const GluForward& op) {
  check_compute_type(op.y);
  TERRACE_CHECK_EQ(op.gate_up.elements(), 2 * op.y.elements());
  const RowRange rows = rows_in(op.row_range, op.y.shape[0]);
  for_each_block(context, rows.count(), kRowBlock, [&](std::int64_t begin, std::int64_t end) {
    HWY_DYNAMIC_DISPATCH(glu_forward)(op, rows.begin + begin, rows.begin + end);
  });
}

void cpu_glu_backward(const KernelContext& context, const GluBackward& op) {
  check_compute_type(op.dy);
  TERRACE_CHECK_EQ(op.gate_up.elements(), 2 * op.dy.elements());
  TERRACE_CHECK_EQ(op.dgate_up.elements(), 2 * op.dy.elements());
  const RowRange rows = rows_in(op.row_range, op.dy.shape[0]);
  for_each_block(context, rows.count(), kRowBlock, [&](std::int64_t begin, std::int64_t end) {
    HWY_DYNAMIC_DISPATCH(glu_backward)(op, rows.begin + begin, rows.begin + end);
  });
}

void cpu_gelu_forward(const KernelContext& context, const GeluForward& op) {
  check_compute_type(op.x);
  const std::int64_t elements = op.x.elements();
  TERRACE_CHECK_EQ(op.y.elements(), elements);
  for_each_block(context, elements, kElementBlock, [&](std::int64_t begin, std::int64_t end) {
    HWY_DYNAMIC_DISPATCH(gelu_forward)(op, begin, end);
  });
}

void cpu_gelu_backward(const KernelContext& context, const GeluBackward& op) {
  check_compute_type(op.x);
  const std::int64_t elements = op.x.elements();
  TERRACE_CHECK_EQ(op.dy.elements(), elements);
  TERRACE_CHECK_EQ(op.dx.elements(), elements);
  for_each_block(context, elements, kElementBlock, [&](std::int64_t begin, std::int64_t end) {
    HWY_DYNAMIC_DISPATCH(gelu_backward)(op, begin, end);
  });
}

}  // namespace terrace
#endif  // HWY_ONCE
