#pragma once

#include <math.h>

#include <cstdint>
#include <numbers>

#include "kernels/kernel_table.h"
#include "kernels/shared/map.h"

// SwiGLU and GELU (tanh formula), forward and backward.
namespace terrace::shared {

TERRACE_KERNEL inline float sigmoid(float x) { return 1.0F / (1.0F + ::expf(-x)); }

template <typename T>
struct SwigluBody {
  const T* gate_up;
  T* y;
  std::int64_t I;
  bool aligned;

  TERRACE_KERNEL void operator()(std::int64_t r, std::int64_t first, std::int64_t count) const {
    const auto gate = load_pack(gate_up + 2 * r * I + first, count, aligned);
    const auto up = load_pack(gate_up + (2 * r + 1) * I + first, count, aligned);
    Pack<T> out;
    TERRACE_UNROLL
    for (int i = 0; i < kPackOf<T>; ++i) {
      const float x = to_float(gate.at[i]);
      out.at[i] = round_to<T>(x * sigmoid(x) * to_float(up.at[i]));
    }
    store_pack(y + r * I + first, out, count, aligned);
  }
};

template <typename Launcher>
void swiglu_forward(Launcher& launcher, const SwigluForward& op) {
  const std::int64_t R = op.y.shape[0];
  const std::int64_t I = op.y.elements() / R;
  TERRACE_CHECK_EQ(op.gate_up.elements(), 2 * R * I);
  with_compute_type(op.y.dtype, [&]<typename T>(std::type_identity<T>) {
    const bool aligned = may_load_packs({op.gate_up.data, op.y.data}, I * sizeof(T));
    const SwigluBody<T> body{op.gate_up.as<T>(), op.y.as<T>(), I, aligned};
    launch_map<kPackOf<T>>(launcher, "swiglu_forward", R, I, body);
  });
}

template <typename T>
struct SwigluGradientBody {
  const T* gate_up;
  const T* dy;
  T* dgate_up;
  std::int64_t I;
  bool aligned;

  TERRACE_KERNEL void operator()(std::int64_t r, std::int64_t first, std::int64_t count) const {
    const std::int64_t gate_at = 2 * r * I + first;
    const auto gate = load_pack(gate_up + gate_at, count, aligned);
    const auto up = load_pack(gate_up + gate_at + I, count, aligned);
    const auto gradient = load_pack(dy + r * I + first, count, aligned);
    Pack<T> dgate;
    Pack<T> dup;
    TERRACE_UNROLL
    for (int i = 0; i < kPackOf<T>; ++i) {
      const float x = to_float(gate.at[i]);
      const float g = to_float(gradient.at[i]);
      const float s = sigmoid(x);
      dgate.at[i] = round_to<T>(g * to_float(up.at[i]) * (s * (1.0F + x * (1.0F - s))));
      dup.at[i] = round_to<T>(g * (x * s));
    }
    store_pack(dgate_up + gate_at, dgate, count, aligned);
    store_pack(dgate_up + gate_at + I, dup, count, aligned);
  }
};

template <typename Launcher>
void swiglu_backward(Launcher& launcher, const SwigluBackward& op) {
  const std::int64_t R = op.dy.shape[0];
  const std::int64_t I = op.dy.elements() / R;
  TERRACE_CHECK_EQ(op.gate_up.elements(), 2 * R * I);
  TERRACE_CHECK_EQ(op.dgate_up.elements(), 2 * R * I);
  with_compute_type(op.dy.dtype, [&]<typename T>(std::type_identity<T>) {
    const bool aligned =
        may_load_packs({op.gate_up.data, op.dy.data, op.dgate_up.data}, I * sizeof(T));
    const SwigluGradientBody<T> body{op.gate_up.as<T>(), op.dy.as<T>(), op.dgate_up.as<T>(), I,
                                     aligned};
    launch_map<kPackOf<T>>(launcher, "swiglu_backward", R, I, body);
  });
}

// gelu(x) = x/2 (1 + tanh(k (x + c x^3))).
inline constexpr float kGeluInner =
    std::numbers::sqrt2_v<float> * std::numbers::inv_sqrtpi_v<float>;
inline constexpr float kGeluCubic = 0.044715F;

TERRACE_KERNEL inline float gelu_tanh(float x) {
  return ::tanhf(kGeluInner * (x + kGeluCubic * x * x * x));
}

template <typename T>
struct GeluBody {
  const T* x;
  T* y;
  bool aligned;

  TERRACE_KERNEL void operator()(std::int64_t, std::int64_t first, std::int64_t count) const {
    const auto in = load_pack(x + first, count, aligned);
    Pack<T> out;
    TERRACE_UNROLL
    for (int i = 0; i < kPackOf<T>; ++i) {
      const float value = to_float(in.at[i]);
      out.at[i] = round_to<T>(value / 2.0F * (1.0F + gelu_tanh(value)));
    }
    store_pack(y + first, out, count, aligned);
  }
};

template <typename Launcher>
void gelu_forward(Launcher& launcher, const GeluForward& op) {
  TERRACE_CHECK_EQ(op.x.elements(), op.y.elements());
  with_compute_type(op.x.dtype, [&]<typename T>(std::type_identity<T>) {
    const GeluBody<T> body{op.x.as<T>(), op.y.as<T>(), may_load_packs({op.x.data, op.y.data}, 0)};
    launch_map<kPackOf<T>>(launcher, "gelu_forward", 1, op.x.elements(), body);
  });
}

template <typename T>
struct GeluGradientBody {
  const T* x;
  const T* dy;
  T* dx;
  bool aligned;

  TERRACE_KERNEL void operator()(std::int64_t, std::int64_t first, std::int64_t count) const {
    const auto in = load_pack(x + first, count, aligned);
    const auto gradient = load_pack(dy + first, count, aligned);
    Pack<T> out;
    TERRACE_UNROLL
    for (int i = 0; i < kPackOf<T>; ++i) {
      const float value = to_float(in.at[i]);
      const float t = gelu_tanh(value);
      const float inner = kGeluInner * (1.0F + 3.0F * kGeluCubic * value * value);
      const float slope = (1.0F + t) / 2.0F + value / 2.0F * (1.0F - t * t) * inner;
      out.at[i] = round_to<T>(to_float(gradient.at[i]) * slope);
    }
    store_pack(dx + first, out, count, aligned);
  }
};

template <typename Launcher>
void gelu_backward(Launcher& launcher, const GeluBackward& op) {
  TERRACE_CHECK_EQ(op.x.elements(), op.dy.elements());
  TERRACE_CHECK_EQ(op.x.elements(), op.dx.elements());
  with_compute_type(op.x.dtype, [&]<typename T>(std::type_identity<T>) {
    const bool aligned = may_load_packs({op.x.data, op.dy.data, op.dx.data}, 0);
    const GeluGradientBody<T> body{op.x.as<T>(), op.dy.as<T>(), op.dx.as<T>(), aligned};
    launch_map<kPackOf<T>>(launcher, "gelu_backward", 1, op.x.elements(), body);
  });
}

}  // namespace terrace::shared
