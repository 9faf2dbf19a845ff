#pragma once

#include <math.h>

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <type_traits>

#include "base/check.h"
#include "base/half.h"
#include "kernels/kernel_context.h"
#include "memory/tensor.h"

// How block kernels read, add and write elements of the compute types: float, Bf16 and Fp16. The
// same text is compiled for the GPU by nvcc and for the host by the compiler of the tests.
#if defined(__CUDACC__)
#define TERRACE_KERNEL __device__
#define TERRACE_UNROLL _Pragma("unroll")
#else
#define TERRACE_KERNEL
#define TERRACE_UNROLL
#endif

namespace terrace::shared {

// Rounds a result to the compute type: nearest, ties to even.
template <typename T>
TERRACE_KERNEL T round_to(float value) {
  if constexpr (std::is_same_v<T, Bf16>) {
    return to_bf16_nearest_even(value);
  } else if constexpr (std::is_same_v<T, Fp16>) {
    return to_fp16_nearest_even(value);
  } else {
    return value;
  }
}

// A gradient that is complete joins its buffer: one addition in both modes.
TERRACE_KERNEL inline void join_gradient(float& target, float gradient, GradientMode mode) {
  target = (mode == GradientMode::kAssign ? 0.0F : target) + gradient;
}

// What one load or store moves: 16 bytes of the compute type, or as many elements of a wider one.
template <typename T>
inline constexpr int kPackOf = static_cast<int>(16 / sizeof(T));

template <typename T, int Count = kPackOf<T>>
struct alignas(16) Pack {
  static_assert(sizeof(T) * Count % 16 == 0);
  T at[Count];
};

// Elements [0, count) from `from`; those past them are zeros. `aligned`: `from` is a multiple of 16
// bytes. The bits do not depend on it.
template <typename T, int Count = kPackOf<T>>
TERRACE_KERNEL Pack<T, Count> load_pack(const T* from, std::int64_t count, bool aligned) {
  if (aligned && count >= Count) return *reinterpret_cast<const Pack<T, Count>*>(from);
  Pack<T, Count> pack;
  TERRACE_UNROLL
  for (int i = 0; i < Count; ++i) pack.at[i] = i < count ? from[i] : T{};
  return pack;
}

template <typename T, int Count>
TERRACE_KERNEL void store_pack(T* to, const Pack<T, Count>& pack, std::int64_t count,
                               bool aligned) {
  if (aligned && count >= Count) {
    *reinterpret_cast<Pack<T, Count>*>(to) = pack;
    return;
  }
  TERRACE_UNROLL
  for (int i = 0; i < Count; ++i) {
    if (i < count) to[i] = pack.at[i];
  }
}

// Calls body(first, count) for the packs of a row of `width` elements that thread t of `threads`
// has.
template <int Count, typename Body>
TERRACE_KERNEL void for_each_pack(int t, int threads, std::int64_t width, Body&& body) {
  for (std::int64_t c = std::int64_t{t} * Count; c < width; c += std::int64_t{threads} * Count) {
    body(c, width - c < Count ? width - c : std::int64_t{Count});
  }
}

// Whether packs may be loaded whole: every pointer and the bytes of a row are multiples of 16.
inline bool may_load_packs(std::initializer_list<const void*> pointers, std::size_t row_bytes) {
  std::uintptr_t bits = row_bytes;
  for (const void* pointer : pointers) bits |= reinterpret_cast<std::uintptr_t>(pointer);
  return bits % 16 == 0;
}

inline std::int64_t divide_up(std::int64_t value, std::int64_t divisor) {
  return (value + divisor - 1) / divisor;
}

// Calls body(std::type_identity<T>) with the T of a compute type.
template <typename Body>
void with_compute_type(DType dtype, Body&& body) {
  if (dtype == DType::kF32) return body(std::type_identity<float>{});
  if (dtype == DType::kF16) return body(std::type_identity<Fp16>{});
  TERRACE_CHECK(dtype == DType::kBF16);
  body(std::type_identity<Bf16>{});
}

}  // namespace terrace::shared
