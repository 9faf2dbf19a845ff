#include <algorithm>
#include <cmath>
#include <numbers>

#include "kernels/reference/reference_element.h"
#include "kernels/reference/reference_ops.h"
#include "kernels/row_range.h"

namespace terrace::reference {
namespace {

// gelu(x) = x/2 (1 + tanh(k (x + c x^3))).
template <typename W>
constexpr W kGeluInner = std::numbers::sqrt2_v<W> * std::numbers::inv_sqrtpi_v<W>;
template <typename W>
constexpr W kGeluCubic = static_cast<W>(0.044715);

// The value and the derivative of an activation.
template <typename W>
struct Activated {
  W value, slope;
};

template <typename W>
Activated<W> silu_of(W x) {
  const W s = sigmoid(x);
  return {x * s, s * (1 + x * (1 - s))};
}

template <typename W>
Activated<W> gelu_of(W x) {
  const W t = std::tanh(kGeluInner<W> * (x + kGeluCubic<W> * x * x * x));
  const W inner = kGeluInner<W> * (1 + 3 * kGeluCubic<W> * x * x);
  return {x / 2 * (1 + t), (1 + t) / 2 + x / 2 * (1 - t * t) * inner};
}

// The clamped gate g sigmoid(k g), which has no slope where it is clamped.
template <typename W>
Activated<W> clamped_gate_of(W x) {
  const W limit = static_cast<W>(kGateClamp);
  const W k = static_cast<W>(kGateSlope);
  const W g = std::min(x, limit);
  const W s = sigmoid(k * g);
  return {g * s, x > limit ? 0 : s * (1 + k * g * (1 - s))};
}

template <typename W>
Activated<W> activated(GateActivation activation, W gate) {
  if (activation == GateActivation::kClampedGate) return clamped_gate_of(gate);
  return activation == GateActivation::kSilu ? silu_of(gate) : gelu_of(gate);
}

// Returns the factor that the activation is multiplied by, and its derivative.
template <typename W>
Activated<W> up_factor(GateActivation activation, W up) {
  if (activation != GateActivation::kClampedGate) return {up, 1};
  const W limit = static_cast<W>(kGateClamp);
  return {std::clamp(up, -limit, limit) + 1, std::abs(up) > limit ? W{0} : W{1}};
}

template <typename T>
void glu(const GluForward& op) {
  const std::int64_t R = op.y.shape[0];
  const std::int64_t I = op.y.elements() / R;
  TERRACE_CHECK_EQ(op.gate_up.elements(), 2 * R * I);
  const RowRange rows = rows_in(op.row_range, R);
  for (std::int64_t r = rows.begin; r < rows.end; ++r) {
    const T* gate = op.gate_up.as<T>() + r * 2 * I;
    const T* up = gate + I;
    for (std::int64_t i = 0; i < I; ++i) {
      const Wide<T> value = activated(op.activation, load(gate[i])).value;
      op.y.as<T>()[r * I + i] = round_to<T>(value * up_factor(op.activation, load(up[i])).value);
    }
  }
}

template <typename T>
void glu_gradient(const GluBackward& op) {
  const std::int64_t R = op.dy.shape[0];
  const std::int64_t I = op.dy.elements() / R;
  TERRACE_CHECK_EQ(op.gate_up.elements(), 2 * R * I);
  TERRACE_CHECK_EQ(op.dgate_up.elements(), 2 * R * I);
  const RowRange rows = rows_in(op.row_range, R);
  for (std::int64_t r = rows.begin; r < rows.end; ++r) {
    const T* gate = op.gate_up.as<T>() + r * 2 * I;
    const T* up = gate + I;
    T* dgate = op.dgate_up.as<T>() + r * 2 * I;
    T* dup = dgate + I;
    for (std::int64_t i = 0; i < I; ++i) {
      const Wide<T> dy = load(op.dy.as<T>()[r * I + i]);
      const Activated<Wide<T>> at = activated(op.activation, load(gate[i]));
      const Activated<Wide<T>> factor = up_factor(op.activation, load(up[i]));
      dgate[i] = round_to<T>(dy * factor.value * at.slope);
      dup[i] = round_to<T>(dy * at.value * factor.slope);
    }
  }
}

template <typename T>
void gelu(const GeluForward& op) {
  TERRACE_CHECK_EQ(op.x.elements(), op.y.elements());
  for (std::int64_t i = 0; i < op.x.elements(); ++i) {
    op.y.as<T>()[i] = round_to<T>(gelu_of(load(op.x.as<T>()[i])).value);
  }
}

template <typename T>
void gelu_gradient(const GeluBackward& op) {
  TERRACE_CHECK_EQ(op.x.elements(), op.dy.elements());
  TERRACE_CHECK_EQ(op.x.elements(), op.dx.elements());
  for (std::int64_t i = 0; i < op.x.elements(); ++i) {
    const Wide<T> slope = gelu_of(load(op.x.as<T>()[i])).slope;
    op.dx.as<T>()[i] = round_to<T>(load(op.dy.as<T>()[i]) * slope);
  }
}

}  // namespace

void glu_forward(const KernelContext&, const GluForward& op) {
  with_compute_type(op.y.dtype, [&]<typename T>(std::type_identity<T>) { glu<T>(op); });
}

void glu_backward(const KernelContext&, const GluBackward& op) {
  with_compute_type(op.dy.dtype, [&]<typename T>(std::type_identity<T>) { glu_gradient<T>(op); });
}

void gelu_forward(const KernelContext&, const GeluForward& op) {
  with_compute_type(op.x.dtype, [&]<typename T>(std::type_identity<T>) { gelu<T>(op); });
}

void gelu_backward(const KernelContext&, const GeluBackward& op) {
  with_compute_type(op.x.dtype, [&]<typename T>(std::type_identity<T>) { gelu_gradient<T>(op); });
}

}  // namespace terrace::reference
