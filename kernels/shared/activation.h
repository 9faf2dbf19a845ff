#pragma once

#include <math.h>

#include <cstdint>
#include <numbers>

#include "kernels/kernel_table.h"
#include "kernels/shared/map.h"

// Gated activations and GELU (tanh formula), forward and backward.
namespace terrace::shared {

// Returns the sigmoid of x, for a result of type T. On a GPU, results of 16 bits use the hardware's
// approximations of 2^x and 1 / x: the relative error is at most (3 + 2 |x|) 2^-23, and a value
// below 2^-126 is zero.
template <typename T>
TERRACE_KERNEL float sigmoid(float x) {
#if defined(__CUDA_ARCH__)
  if constexpr (sizeof(T) == 2) {
    float power;
    float result;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(power) : "f"(x * -std::numbers::log2e_v<float>));
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(1.0F + power));
    return result;
  }
#endif
  return 1.0F / (1.0F + ::expf(-x));
}

// gelu(x) = x/2 (1 + tanh(k (x + c x^3))).
inline constexpr float kGeluInner =
    std::numbers::sqrt2_v<float> * std::numbers::inv_sqrtpi_v<float>;
inline constexpr float kGeluCubic = 0.044715F;

// Returns the factor that x is multiplied by: (1 + tanh(u)) / 2, which is the sigmoid of 2 u.
template <typename T>
TERRACE_KERNEL float gelu_share(float x) {
  const float inner = kGeluInner * (x + kGeluCubic * x * x * x);
  if constexpr (sizeof(T) == 2) return sigmoid<T>(2.0F * inner);
  return 0.5F * (1.0F + ::tanhf(inner));
}

// Activations: the value at x, and the value with its derivative.
struct Activated {
  float value, slope;
};

// The factor that an activation is multiplied by, and whether it has a gradient.
struct PlainUp {
  TERRACE_KERNEL static float value(float up) { return up; }
  TERRACE_KERNEL static bool has_gradient(float) { return true; }
};
struct ClampedUp {
  TERRACE_KERNEL static float value(float up) {
    if (up > kGateClamp) return kGateClamp + 1.0F;
    return up < -kGateClamp ? 1.0F - kGateClamp : up + 1.0F;
  }
  TERRACE_KERNEL static bool has_gradient(float up) {
    return !(up > kGateClamp) && !(up < -kGateClamp);
  }
};

struct Silu {
  using Up = PlainUp;
  template <typename T>
  TERRACE_KERNEL static float value(float x) {
    return x * sigmoid<T>(x);
  }
  template <typename T>
  TERRACE_KERNEL static Activated both(float x) {
    const float s = sigmoid<T>(x);
    return {x * s, s * (1.0F + x * (1.0F - s))};
  }
};

struct Gelu {
  using Up = PlainUp;
  template <typename T>
  TERRACE_KERNEL static float value(float x) {
    return x * gelu_share<T>(x);
  }
  template <typename T>
  TERRACE_KERNEL static Activated both(float x) {
    const float share = gelu_share<T>(x);
    const float inner = kGeluInner * (1.0F + 3.0F * kGeluCubic * x * x);
    return {x * share, share + 2.0F * x * share * (1.0F - share) * inner};
  }
};

// g sigmoid(k g) of the clamped gate g.
struct ClampedGate {
  using Up = ClampedUp;
  template <typename T>
  TERRACE_KERNEL static float value(float gate) {
    const float g = gate > kGateClamp ? kGateClamp : gate;
    return g * sigmoid<T>(kGateSlope * g);
  }
  template <typename T>
  TERRACE_KERNEL static Activated both(float gate) {
    const float g = gate > kGateClamp ? kGateClamp : gate;
    const float inner = kGateSlope * g;
    const float s = sigmoid<T>(inner);
    return {g * s, gate > kGateClamp ? 0.0F : s * (1.0F + inner * (1.0F - s))};
  }
};

// Calls body(Activation) with the struct above.
template <typename Body>
void with_activation(GateActivation activation, const Body& body) {
  if (activation == GateActivation::kSilu) return body(Silu());
  if (activation == GateActivation::kClampedGate) return body(ClampedGate());
  TERRACE_CHECK(activation == GateActivation::kGeluTanh);
  body(Gelu());
}

template <typename T, typename Activation>
struct GluBody {
  const T* gate_up;
  T* y;
  std::int64_t I;
  bool aligned;
  LaunchedRows rows;

  TERRACE_KERNEL void operator()(std::int64_t r, std::int64_t first, int count) const {
    if (!rows.have(r)) return;
    const auto gate = load_words(gate_up + 2 * r * I + first, count, aligned);
    const auto up = load_words(gate_up + (2 * r + 1) * I + first, count, aligned);
    Floats<kPackOf<T>> out;
    TERRACE_UNROLL
    for (int i = 0; i < kPackOf<T>; ++i) {
      const float factor = Activation::Up::value(up.value(i));
      out.at[i] = Activation::template value<T>(gate.value(i)) * factor;
    }
    store_words(y + r * I + first, round_words<T>(out), count, aligned);
  }
};

template <typename Launcher>
void glu_forward(Launcher& launcher, const GluForward& op) {
  const std::int64_t R = op.y.shape[0];
  const std::int64_t I = op.y.elements() / R;
  TERRACE_CHECK_EQ(op.gate_up.elements(), 2 * R * I);
  with_compute_type(op.y.dtype, [&]<typename T>(std::type_identity<T>) {
    const bool aligned = may_load_packs({op.gate_up.data, op.y.data}, I * sizeof(T));
    with_activation(op.activation, [&]<typename Activation>(Activation) {
      const GluBody<T, Activation> body{op.gate_up.as<T>(), op.y.as<T>(), I, aligned,
                                        LaunchedRows(op.row_range)};
      launch_map<kPackOf<T>>(launcher, "glu_forward", R, I, body);
    });
  });
}

template <typename T, typename Activation>
struct GluGradientBody {
  const T* gate_up;
  const T* dy;
  T* dgate_up;
  std::int64_t I;
  bool aligned;
  LaunchedRows rows;

  TERRACE_KERNEL void operator()(std::int64_t r, std::int64_t first, int count) const {
    if (!rows.have(r)) return;
    const std::int64_t gate_at = 2 * r * I + first;
    const auto gate = load_words(gate_up + gate_at, count, aligned);
    const auto up = load_words(gate_up + gate_at + I, count, aligned);
    const auto gradient = load_words(dy + r * I + first, count, aligned);
    Floats<kPackOf<T>> dgate;
    Floats<kPackOf<T>> dup;
    TERRACE_UNROLL
    for (int i = 0; i < kPackOf<T>; ++i) {
      const float g = gradient.value(i);
      const Activated at = Activation::template both<T>(gate.value(i));
      dgate.at[i] = g * Activation::Up::value(up.value(i)) * at.slope;
      dup.at[i] = Activation::Up::has_gradient(up.value(i)) ? g * at.value : 0.0F;
    }
    store_words(dgate_up + gate_at, round_words<T>(dgate), count, aligned);
    store_words(dgate_up + gate_at + I, round_words<T>(dup), count, aligned);
  }
};

template <typename Launcher>
void glu_backward(Launcher& launcher, const GluBackward& op) {
  const std::int64_t R = op.dy.shape[0];
  const std::int64_t I = op.dy.elements() / R;
  TERRACE_CHECK_EQ(op.gate_up.elements(), 2 * R * I);
  TERRACE_CHECK_EQ(op.dgate_up.elements(), 2 * R * I);
  with_compute_type(op.dy.dtype, [&]<typename T>(std::type_identity<T>) {
    const bool aligned =
        may_load_packs({op.gate_up.data, op.dy.data, op.dgate_up.data}, I * sizeof(T));
    with_activation(op.activation, [&]<typename Activation>(Activation) {
      const GluGradientBody<T, Activation> body{
          op.gate_up.as<T>(),        op.dy.as<T>(), op.dgate_up.as<T>(), I, aligned,
          LaunchedRows(op.row_range)};
      launch_map<kPackOf<T>>(launcher, "glu_backward", R, I, body);
    });
  });
}

template <typename T>
struct GeluBody {
  const T* x;
  T* y;
  bool aligned;

  TERRACE_KERNEL void operator()(std::int64_t, std::int64_t first, int count) const {
    const auto in = load_words(x + first, count, aligned);
    Floats<kPackOf<T>> out;
    TERRACE_UNROLL
    for (int i = 0; i < kPackOf<T>; ++i) out.at[i] = Gelu::value<T>(in.value(i));
    store_words(y + first, round_words<T>(out), count, aligned);
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

  TERRACE_KERNEL void operator()(std::int64_t, std::int64_t first, int count) const {
    const auto in = load_words(x + first, count, aligned);
    const auto gradient = load_words(dy + first, count, aligned);
    Floats<kPackOf<T>> out;
    TERRACE_UNROLL
    for (int i = 0; i < kPackOf<T>; ++i) {
      out.at[i] = gradient.value(i) * Gelu::both<T>(in.value(i)).slope;
    }
    store_words(dx + first, round_words<T>(out), count, aligned);
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
