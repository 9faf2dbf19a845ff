#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>
#include <type_traits>

#include "base/check.h"
#include "base/half.h"
#include "kernels/kernel_context.h"
#include "memory/tensor.h"

// How the reference reads, adds and writes elements of its compute types: float, Bf16, Fp16,
// double.
namespace terrace::reference {

// The type in which sums, statistics and weight gradients are kept.
template <typename T>
using Wide = std::conditional_t<std::is_same_v<T, double>, double, float>;

template <typename T>
Wide<T> load(T value) {
  if constexpr (std::is_same_v<T, Bf16> || std::is_same_v<T, Fp16>) {
    return to_float(value);
  } else {
    return value;
  }
}

// Rounds a result to the compute type: nearest, ties to even.
template <typename T>
T round_to(Wide<T> value) {
  if constexpr (std::is_same_v<T, Bf16>) {
    return to_bf16_nearest_even(value);
  } else if constexpr (std::is_same_v<T, Fp16>) {
    return to_fp16_nearest_even(value);
  } else {
    return value;
  }
}

// Adds a complete gradient to its buffer: one addition in both modes.
template <typename W>
void join_gradient(W& target, W gradient, GradientMode mode) {
  target = (mode == GradientMode::kAssign ? W{0} : target) + gradient;
}

// Calls body(std::type_identity<T>) with the T of a compute type.
template <typename Body>
void with_compute_type(DType dtype, Body&& body) {
  switch (dtype) {
    case DType::kF32:
      return body(std::type_identity<float>{});
    case DType::kBF16:
      return body(std::type_identity<Bf16>{});
    case DType::kF64:
      return body(std::type_identity<double>{});
    case DType::kF16:
      return body(std::type_identity<Fp16>{});
    case DType::kI32:
    case DType::kI16:
    case DType::kU8:
      break;
  }
  check_failed(__FILE__, __LINE__, "a compute type", std::string(name_of(dtype)));
}

// Cuts the workspace of a call into arrays, in the order of the calls.
class WorkspaceCutter {
 public:
  explicit WorkspaceCutter(std::span<std::byte> workspace) : rest_(workspace) {}

  template <typename T>
  std::span<T> take(std::int64_t count) {
    const std::size_t bytes = padded_bytes(count);
    TERRACE_CHECK_LE(bytes, rest_.size());
    const std::span<T> array(reinterpret_cast<T*>(rest_.data()), static_cast<std::size_t>(count));
    rest_ = rest_.subspan(bytes);
    return array;
  }

  // Returns the bytes that one array of `count` elements of any type takes: every type counts as
  // fp64.
  static std::size_t padded_bytes(std::int64_t count) {
    return static_cast<std::size_t>(count) * sizeof(double);
  }

 private:
  std::span<std::byte> rest_;
};

template <typename W>
W sigmoid(W x) {
  return 1 / (1 + std::exp(-x));
}

}  // namespace terrace::reference
