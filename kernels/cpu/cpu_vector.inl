// Vectors of the CPU kernels: at most 16 fp32 lanes, loads and stores of fp32 and bf16, a fixed
// sum. Included once per Highway target, after hwy/foreach_target.h and hwy/highway.h; hence it has
// the guard that Highway toggles instead of `#pragma once`.
#if defined(TERRACE_KERNELS_CPU_CPU_VECTOR_INL) == defined(HWY_TARGET_TOGGLE)
#ifdef TERRACE_KERNELS_CPU_CPU_VECTOR_INL
#undef TERRACE_KERNELS_CPU_CPU_VECTOR_INL
#else
#define TERRACE_KERNELS_CPU_CPU_VECTOR_INL
#endif

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "base/half.h"
#include "hwy/highway.h"

// Goes between the parameters and the body of a lambda for the loops below, which is then compiled
// for the target and always inlined into the loop.
#ifndef TERRACE_VECTOR_BODY
#define TERRACE_VECTOR_BODY HWY_ATTR __attribute__((always_inline))
#endif

HWY_BEFORE_NAMESPACE();
namespace terrace {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

using Lanes = hn::CappedTag<float, 16>;
using LaneWords = hn::RebindToUnsigned<Lanes>;
using LaneHalves = hn::Rebind<std::uint16_t, Lanes>;
using Vec = hn::Vec<Lanes>;
using WordVec = hn::Vec<LaneWords>;
inline constexpr std::int64_t kLanes = static_cast<std::int64_t>(hn::MaxLanes(Lanes()));

HWY_INLINE Vec splat(float value) { return hn::Set(Lanes(), value); }

HWY_INLINE Vec load(const float* source) { return hn::LoadU(Lanes(), source); }

HWY_INLINE Vec load(const Bf16* source) {
  const auto halves = hn::LoadU(LaneHalves(), reinterpret_cast<const std::uint16_t*>(source));
  return hn::BitCast(Lanes(), hn::ShiftLeft<16>(hn::PromoteTo(LaneWords(), halves)));
}

HWY_INLINE void store(Vec value, float* target) { hn::StoreU(value, Lanes(), target); }

// Returns the upper half of each word of `rounded`; where value is NaN, that of value made quiet.
HWY_INLINE WordVec upper_or_nan(Vec value, WordVec rounded) {
  const LaneWords words;
  const auto quiet = hn::Or(hn::BitCast(words, value), hn::Set(words, 0x400000U));
  const auto is_nan = hn::RebindMask(words, hn::IsNaN(value));
  return hn::ShiftRight<16>(hn::IfThenElse(is_nan, quiet, rounded));
}

// Return the bf16 of each lane, in the low half of its word, as to_bf16_nearest_even and _ties_away
// do.
HWY_INLINE WordVec bf16_words_nearest_even(Vec value) {
  const LaneWords words;
  const auto bits = hn::BitCast(words, value);
  const auto odd = hn::And(hn::ShiftRight<16>(bits), hn::Set(words, 1U));
  return upper_or_nan(value, hn::Add(bits, hn::Add(odd, hn::Set(words, 0x7fffU))));
}

HWY_INLINE WordVec bf16_words_ties_away(Vec value) {
  const LaneWords words;
  return upper_or_nan(value, hn::Add(hn::BitCast(words, value), hn::Set(words, 0x8000U)));
}

HWY_INLINE void store_halves(WordVec words, Bf16* target) {
  hn::StoreU(hn::TruncateTo(LaneHalves(), words), LaneHalves(),
             reinterpret_cast<std::uint16_t*>(target));
}

HWY_INLINE void store(Vec value, Bf16* target) {
  store_halves(bf16_words_nearest_even(value), target);
}

// Returns the value that a store as T and a load would give.
HWY_INLINE Vec round_to(Vec value, const float*) { return value; }
HWY_INLINE Vec round_to(Vec value, const Bf16*) {
  return hn::BitCast(Lanes(), hn::ShiftLeft<16>(bf16_words_nearest_even(value)));
}

// Loads the first `count` lanes and sets the others to `fill`. Reads nothing past the first
// `count`.
template <typename T>
HWY_INLINE Vec load_n(const T* source, std::int64_t count, float fill = 0.0F) {
  if (count >= kLanes) return load(source);
  alignas(64) float lanes[kLanes];
  for (std::int64_t i = 0; i < kLanes; ++i) lanes[i] = i < count ? to_float(source[i]) : fill;
  return hn::Load(Lanes(), lanes);
}

template <typename T>
HWY_INLINE void store_n(Vec value, T* target, std::int64_t count) {
  if (count >= kLanes) {
    store(value, target);
    return;
  }
  alignas(64) T lanes[kLanes];
  store(value, lanes);
  std::copy_n(lanes, count, target);
}

// Calls body(i, count) for the vectors that start at i and have `count` valid lanes.
template <typename Body>
HWY_INLINE void for_each_vector(std::int64_t elements, const Body& body) {
  std::int64_t i = 0;
  for (; i + kLanes <= elements; i += kLanes) body(i, kLanes);
  if (i < elements) body(i, elements - i);
}

// Returns the sum of term(i, count) over [0, elements): element i goes to accumulator i mod 32, and
// the 32 are added by halving, whatever the vector width. A term is 0 in the lanes that are not
// valid.
inline constexpr std::int64_t kSumLanes = 32;

template <typename Term>
HWY_INLINE float sum_over(std::int64_t elements, const Term& term) {
  constexpr std::int64_t kVectors = kSumLanes / kLanes;
  Vec sums[kVectors];
  for (std::int64_t j = 0; j < kVectors; ++j) sums[j] = hn::Zero(Lanes());
  std::int64_t i = 0;
  for (; i + kSumLanes <= elements; i += kSumLanes) {
    for (std::int64_t j = 0; j < kVectors; ++j) {
      sums[j] = hn::Add(sums[j], term(i + j * kLanes, kLanes));
    }
  }
  for (std::int64_t j = 0; j < kVectors && i < elements; ++j, i += kLanes) {
    sums[j] = hn::Add(sums[j], term(i, std::min(kLanes, elements - i)));
  }
  alignas(64) float lanes[kSumLanes];
  for (std::int64_t j = 0; j < kVectors; ++j) hn::Store(sums[j], Lanes(), lanes + j * kLanes);
  for (std::int64_t half = kSumLanes / 2; half > 0; half /= 2) {
    for (std::int64_t j = 0; j < half; ++j) lanes[j] += lanes[j + half];
  }
  return lanes[0];
}

}  // namespace HWY_NAMESPACE
}  // namespace terrace
HWY_AFTER_NAMESPACE();

#endif  // per-target guard
