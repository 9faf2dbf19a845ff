#pragma once

#include <math.h>

#include <bit>
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

// Rounds a result to the compute type: nearest, ties to even. A GPU does it in one instruction,
// with the bits of base/half.h, except that every NaN becomes 0x7fff.
template <typename T>
TERRACE_KERNEL T round_to(float value) {
#if defined(__CUDA_ARCH__)
  T rounded;
  if constexpr (std::is_same_v<T, Bf16>) {
    asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(rounded.bits) : "f"(value));
  } else if constexpr (std::is_same_v<T, Fp16>) {
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(rounded.bits) : "f"(value));
  } else {
    rounded = value;
  }
  return rounded;
#else
  if constexpr (std::is_same_v<T, Bf16>) {
    return to_bf16_nearest_even(value);
  } else if constexpr (std::is_same_v<T, Fp16>) {
    return to_fp16_nearest_even(value);
  } else {
    return value;
  }
#endif
}

// Returns the exact value of an element; for a NaN, a NaN.
template <typename T>
TERRACE_KERNEL float widened(T element) {
#if defined(__CUDA_ARCH__)
  if constexpr (std::is_same_v<T, Fp16>) {
    float value;
    asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(element.bits));
    return value;
  }
#endif
  return to_float(element);
}

// Hides from nvcc how the two values were computed. It then chooses between them once, instead of
// choosing again and again between the values that they were computed from.
TERRACE_KERNEL inline void hide_origin([[maybe_unused]] float& one, [[maybe_unused]] float& other) {
#if defined(__CUDA_ARCH__)
  asm("" : "+f"(one), "+f"(other));
#endif
}

// Numbers that are added one by one.
template <int Count>
struct Floats {
  float at[Count];

  TERRACE_KERNEL friend Floats operator+(const Floats& a, const Floats& b) {
    Floats sum;
    TERRACE_UNROLL
    for (int i = 0; i < Count; ++i) sum.at[i] = a.at[i] + b.at[i];
    return sum;
  }
};

// Adds a complete gradient to its buffer: one addition in both modes.
TERRACE_KERNEL inline void join_gradient(float& target, float gradient, GradientMode mode) {
  target = (mode == GradientMode::kAssign ? 0.0F : target) + gradient;
}

// The elements that one load or store moves: 16 bytes of the compute type, or the same number of
// elements of a wider type.
template <typename T>
inline constexpr int kPackOf = static_cast<int>(16 / sizeof(T));

template <typename T, int Count = kPackOf<T>>
struct alignas(sizeof(T) * Count < 16 ? sizeof(T) * Count : 16) Pack {
  static_assert(sizeof(T) * Count % 16 == 0 || sizeof(T) * Count == 8);
  T at[Count];
};

// Loads elements [0, count) from `from`; the elements past them are zeros. `aligned`: `from` is a
// multiple of 16 bytes. The bits do not depend on it.
template <typename T, int Count = kPackOf<T>>
TERRACE_KERNEL Pack<T, Count> load_pack(const T* from, std::int64_t count, bool aligned) {
  if (aligned && count >= Count) return *reinterpret_cast<const Pack<T, Count>*>(from);
  Pack<T, Count> pack;
  TERRACE_UNROLL
  for (int i = 0; i < Count; ++i) pack.at[i] = i < count ? from[i] : T{};
  return pack;
}

// Stores to global memory, 16 bytes at a time, or 8 bytes once. Where a branch beside it stores
// elements one by one, nvcc would merge the two and store 2 bytes at a time; it leaves instructions
// that are written out alone.
template <typename Whole>
TERRACE_KERNEL void store_whole(void* to, const Whole& whole) {
  static_assert(sizeof(Whole) % 16 == 0 || sizeof(Whole) == 8);
#if defined(__CUDA_ARCH__)
  if constexpr (sizeof(Whole) == 8) {
    const auto piece = std::bit_cast<uint2>(whole);
    asm volatile("st.global.v2.b32 [%0], {%1, %2};" ::"l"(__cvta_generic_to_global(to)),
                 "r"(piece.x), "r"(piece.y)
                 : "memory");
  } else {
    struct Pieces {
      uint4 at[sizeof(Whole) / 16];
    };
    const auto pieces = std::bit_cast<Pieces>(whole);
    TERRACE_UNROLL
    for (int i = 0; i < static_cast<int>(sizeof(Whole) / 16); ++i) {
      const uint4& piece = pieces.at[i];
      asm volatile("st.global.v4.b32 [%0], {%1, %2, %3, %4};" ::"l"(
                       __cvta_generic_to_global(static_cast<uint4*>(to) + i)),
                   "r"(piece.x), "r"(piece.y), "r"(piece.z), "r"(piece.w)
                   : "memory");
    }
  }
#else
  *static_cast<Whole*>(to) = whole;
#endif
}

template <typename T, int Count>
TERRACE_KERNEL void store_pack(T* to, const Pack<T, Count>& pack, std::int64_t count,
                               bool aligned) {
  if (aligned && count >= Count) {
    store_whole(to, pack);
    return;
  }
  TERRACE_UNROLL
  for (int i = 0; i < Count; ++i) {
    if (i < count) to[i] = pack.at[i];
  }
}

// A pack in the registers that it is loaded into. Elements of 16 or 8 bits would get a register
// each, and taking them apart next to the load would wait for the load before the next one begins.
// A thread that loads or keeps several packs holds them in this form.
template <typename T, int Count = kPackOf<T>>
struct alignas(alignof(Pack<T, Count>)) Words {
  static constexpr int kOfWord = static_cast<int>(sizeof(std::uint32_t) / sizeof(T));
  using Bits = std::conditional_t<kOfWord == 1, std::uint32_t,
                                  std::conditional_t<kOfWord == 2, std::uint16_t, std::uint8_t>>;

  std::uint32_t at[Count / kOfWord];

  // Element i.
  TERRACE_KERNEL Bits bits(int i) const {
    return static_cast<Bits>(at[i / kOfWord] >> (i % kOfWord * 8 * static_cast<int>(sizeof(T))));
  }
  TERRACE_KERNEL float value(int i) const { return widened(std::bit_cast<T>(bits(i))); }
};

// Loads a whole pack at `from`. A pack with elements of 8 bits is loaded as words, because nvcc
// would otherwise take its bytes apart, join them again, and wait for the load there.
template <typename T, int Count>
TERRACE_KERNEL Words<T, Count> load_whole_words(const T* from) {
  using Loaded = Words<T, Count>;
#if defined(__CUDA_ARCH__)
  if constexpr (sizeof(Loaded) == sizeof(uint2)) {
    return std::bit_cast<Loaded>(*reinterpret_cast<const uint2*>(from));
  }
#endif
  return std::bit_cast<Loaded>(*reinterpret_cast<const Pack<T, Count>*>(from));
}

// Loads elements [0, count) from `from` as load_pack() does.
template <typename T, int Count = kPackOf<T>>
TERRACE_KERNEL Words<T, Count> load_words(const T* from, int count, bool aligned) {
  using Loaded = Words<T, Count>;
  if (aligned && count >= Count) return load_whole_words<T, Count>(from);
  Loaded words = {};
  TERRACE_UNROLL
  for (int i = 0; i < Count; ++i) {
    if (i >= count) continue;
    const std::uint32_t bits = std::bit_cast<typename Loaded::Bits>(from[i]);
    words.at[i / Loaded::kOfWord] |= bits
                                     << (i % Loaded::kOfWord * 8 * static_cast<int>(sizeof(T)));
  }
  return words;
}

// Returns the lower or upper halves of two words in one word, the first word's in its lower half.
TERRACE_KERNEL inline std::uint32_t lower_halves(std::uint32_t first, std::uint32_t second) {
#if defined(__CUDA_ARCH__)
  return __byte_perm(first, second, 0x5410);
#else
  return (first & 0xffffU) | second << 16;
#endif
}
TERRACE_KERNEL inline std::uint32_t upper_halves(std::uint32_t first, std::uint32_t second) {
#if defined(__CUDA_ARCH__)
  return __byte_perm(first, second, 0x7632);
#else
  return first >> 16 | (second & 0xffff0000U);
#endif
}

// Does std::rotr() in one instruction.
TERRACE_KERNEL inline std::uint32_t turned_right(std::uint32_t word, int bits) {
#if defined(__CUDA_ARCH__)
  return __funnelshift_r(word, word, bits);
#else
  return std::rotr(word, bits);
#endif
}

// Returns two results of 16 bits in a word, the first in its lower half.
template <typename T>
TERRACE_KERNEL std::uint32_t round_two(float low, float high) {
#if defined(__CUDA_ARCH__)
  // One instruction; its first source operand goes to the upper half.
  std::uint32_t word = 0;
  if constexpr (std::is_same_v<T, Bf16>) {
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(word) : "f"(high), "f"(low));
  } else {
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(word) : "f"(high), "f"(low));
  }
  return word;
#else
  return round_to<T>(low).bits | static_cast<std::uint32_t>(round_to<T>(high).bits) << 16;
#endif
}

// Returns the pack of values rounded by round_to().
template <typename T>
TERRACE_KERNEL Words<T> round_words(const Floats<kPackOf<T>>& values) {
  Words<T> words;
  TERRACE_UNROLL
  for (int i = 0; i < 4; ++i) {
    if constexpr (Words<T>::kOfWord == 1) {
      words.at[i] = std::bit_cast<std::uint32_t>(values.at[i]);
    } else {
      words.at[i] = round_two<T>(values.at[2 * i], values.at[2 * i + 1]);
    }
  }
  return words;
}

template <typename T>
TERRACE_KERNEL Words<T> sum_of_words(const Words<T>& a, const Words<T>& b) {
  Floats<kPackOf<T>> sum;
  TERRACE_UNROLL
  for (int i = 0; i < kPackOf<T>; ++i) sum.at[i] = a.value(i) + b.value(i);
  return round_words<T>(sum);
}

template <typename T, int Count>
TERRACE_KERNEL void store_words(T* to, const Words<T, Count>& words, int count, bool aligned) {
  if (aligned && count >= Count) {
    store_whole(to, std::bit_cast<Pack<T, Count>>(words));
    return;
  }
  TERRACE_UNROLL
  for (int i = 0; i < Count; ++i) {
    if (i < count) to[i] = std::bit_cast<T>(words.bits(i));
  }
}

// Calls body(count, aligned) with the arguments for load_words() and store_words(). They are
// constants where packs of Count are whole: a thread then has one branch for all its loads, and no
// branch between the loads makes it wait.
template <int Count, typename Body>
TERRACE_KERNEL void with_whole_packs(int count, bool aligned, const Body& body) {
  if (aligned && count >= Count) {
    body(Count, true);
  } else {
    body(count, false);
  }
}

// Returns whether packs may be loaded whole: every pointer and the bytes of a row are multiples of
// 16.
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
