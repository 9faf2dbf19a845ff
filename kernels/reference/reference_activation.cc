#include <cmath>
#include <numbers>

#include "kernels/reference/reference_element.h"
#include "kernels/reference/reference_ops.h"

namespace terrace::reference {
namespace {

template <typename W>
W sigmoid(W x) {
  return 1 / (1 + std::exp(-x));
}

template <typename T>
void swiglu(const SwigluForward& op) {
  const std::int64_t R = op.y.shape[0];
  const std::int64_t I = op.y.elements() / R;
  TERRACE_CHECK_EQ(op.gate_up.elements(), 2 * R * I);
  for (std::int64_t r = 0; r < R; ++r) {
    const T* gate = op.gate_up.as<T>() + r * 2 * I;
    const T* up = gate + I;
    for (std::int64_t i = 0; i < I; ++i) {
      const Wide<T> x = load(gate[i]);
      op.y.as<T>()[r * I + i] = round_to<T>(x * sigmoid(x) * load(up[i]));
    }
  }
}

template <typename T>
void swiglu_gradient(const SwigluBackward& op) {
  const std::int64_t R = op.dy.shape[0];
  const std::int64_t I = op.dy.elements() / R;
  TERRACE_CHECK_EQ(op.gate_up.elements(), 2 * R * I);
  TERRACE_CHECK_EQ(op.dgate_up.elements(), 2 * R * I);
  for (std::int64_t r = 0; r < R; ++r) {
    const T* gate = op.gate_up.as<T>() + r * 2 * I;
    const T* up = gate + I;
    T* dgate = op.dgate_up.as<T>() + r * 2 * I;
    T* dup = dgate + I;
    for (std::int64_t i = 0; i < I; ++i) {
      const Wide<T> dy = load(op.dy.as<T>()[r * I + i]);
      const Wide<T> x = load(gate[i]);
      const Wide<T> s = sigmoid(x);
      const Wide<T> up_value = load(up[i]);
      dgate[i] = round_to<T>(dy * up_value * (s * (1 + x * (1 - s))));
      dup[i] = round_to<T>(dy * (x * s));
    }
  }
}

// gelu(x) = x/2 (1 + tanh(k (x + c x^3))).
template <typename W>
constexpr W kGeluInner = std::numbers::sqrt2_v<W> * std::numbers::inv_sqrtpi_v<W>;
template <typename W>
constexpr W kGeluCubic = static_cast<W>(0.044715);

template <typename T>
void gelu(const GeluForward& op) {
  using W = Wide<T>;
  TERRACE_CHECK_EQ(op.x.elements(), op.y.elements());
  for (std::int64_t i = 0; i < op.x.elements(); ++i) {
    const W x = load(op.x.as<T>()[i]);
    const W t = std::tanh(kGeluInner<W> * (x + kGeluCubic<W> * x * x * x));
    op.y.as<T>()[i] = round_to<T>(x / 2 * (1 + t));
  }
}

template <typename T>
void gelu_gradient(const GeluBackward& op) {
  using W = Wide<T>;
  TERRACE_CHECK_EQ(op.x.elements(), op.dy.elements());
  TERRACE_CHECK_EQ(op.x.elements(), op.dx.elements());
  for (std::int64_t i = 0; i < op.x.elements(); ++i) {
    const W x = load(op.x.as<T>()[i]);
    const W t = std::tanh(kGeluInner<W> * (x + kGeluCubic<W> * x * x * x));
    const W inner = kGeluInner<W> * (1 + 3 * kGeluCubic<W> * x * x);
    const W slope = (1 + t) / 2 + x / 2 * (1 - t * t) * inner;
    op.dx.as<T>()[i] = round_to<T>(load(op.dy.as<T>()[i]) * slope);
  }
}

}  // namespace

void swiglu_forward(const KernelContext&, const SwigluForward& op) {
  with_compute_type(op.y.dtype, [&]<typename T>(std::type_identity<T>) { swiglu<T>(op); });
}

void swiglu_backward(const KernelContext&, const SwigluBackward& op) {
  with_compute_type(op.dy.dtype,
                    [&]<typename T>(std::type_identity<T>) { swiglu_gradient<T>(op); });
}

void gelu_forward(const KernelContext&, const GeluForward& op) {
  with_compute_type(op.x.dtype, [&]<typename T>(std::type_identity<T>) { gelu<T>(op); });
}

void gelu_backward(const KernelContext&, const GeluBackward& op) {
  with_compute_type(op.x.dtype, [&]<typename T>(std::type_identity<T>) { gelu_gradient<T>(op); });
}

}  // namespace terrace::reference
