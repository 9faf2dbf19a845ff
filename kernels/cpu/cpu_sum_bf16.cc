#include "kernels/cpu/cpu_sum_bf16.h"

#include <bit>
#include <cstdint>

#include "base/half.h"
#include "kernels/cpu/highway_targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/cpu_sum_bf16.cc"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
#include "kernels/cpu/cpu_vector.inl"

HWY_BEFORE_NAMESPACE();
namespace terrace {
namespace HWY_NAMESPACE {

HWY_INLINE const Bf16* bf16_at(const std::byte* data, std::size_t element) {
  return reinterpret_cast<const Bf16*>(data) + element;
}
HWY_INLINE Bf16* bf16_at(std::byte* data, std::size_t element) {
  return reinterpret_cast<Bf16*>(data) + element;
}

// Elements two by two, as the words of memory hold them: an even element is the low half of its
// word. This takes half the work of widening and narrowing vectors.
struct Pairs {
  Vec even;
  Vec odd;
};

HWY_INLINE WordVec high_halves() { return hn::Set(LaneWords(), 0xffff0000U); }

HWY_INLINE Pairs load_pairs(const Bf16* source) {
  static_assert(std::endian::native == std::endian::little);
  const auto words = hn::LoadU(LaneWords(), reinterpret_cast<const std::uint32_t*>(source));
  return {hn::BitCast(Lanes(), hn::ShiftLeft<16>(words)),
          hn::BitCast(Lanes(), hn::And(words, high_halves()))};
}

HWY_INLINE void add(Pairs& sum, const Pairs& next) {
  sum.even = hn::Add(sum.even, next.even);
  sum.odd = hn::Add(sum.odd, next.odd);
}

// Rounds a number: its bf16 is in the high half of the word.
HWY_INLINE WordVec rounded_number(Vec value) {
  const LaneWords words;
  const auto bits = hn::BitCast(words, value);
  const auto odd = hn::And(hn::ShiftRight<16>(bits), hn::Set(words, 1U));
  return hn::Add(bits, hn::Add(odd, hn::Set(words, 0x7fffU)));
}

HWY_INLINE WordVec rounded(const Pairs& sum) {
  if (hn::AllFalse(Lanes(), hn::Or(hn::IsNaN(sum.even), hn::IsNaN(sum.odd)))) {
    return hn::OrAnd(hn::ShiftRight<16>(rounded_number(sum.even)), rounded_number(sum.odd),
                     high_halves());
  }
  return hn::Or(bf16_words_nearest_even(sum.even),
                hn::ShiftLeft<16>(bf16_words_nearest_even(sum.odd)));
}

HWY_INLINE void store_pairs(WordVec pairs, Bf16* target) {
  hn::StoreU(pairs, LaneWords(), reinterpret_cast<std::uint32_t*>(target));
}

// Sums as many elements as whole vectors take, and returns how many.
std::size_t sum_vectors(std::span<std::byte* const> targets,
                        std::span<const std::byte* const> sources, std::size_t elements) {
  constexpr std::size_t kPairs = 2 * static_cast<std::size_t>(kLanes);  // elements of a vector
  constexpr std::size_t kStep = 2 * kPairs;                             // of each source in turn
  std::size_t i = 0;
  for (; i + kStep <= elements; i += kStep) {
    const Bf16* first = bf16_at(sources.front(), i);
    Pairs sum0 = load_pairs(first);
    Pairs sum1 = load_pairs(first + kPairs);
    for (std::size_t rank = 1; rank < sources.size(); ++rank) {
      const Bf16* next = bf16_at(sources[rank], i);
      add(sum0, load_pairs(next));
      add(sum1, load_pairs(next + kPairs));
    }
    const WordVec rounded0 = rounded(sum0);
    const WordVec rounded1 = rounded(sum1);
    for (std::byte* target : targets) {
      store_pairs(rounded0, bf16_at(target, i));
      store_pairs(rounded1, bf16_at(target, i) + kPairs);
    }
  }
  return i;
}

}  // namespace HWY_NAMESPACE
}  // namespace terrace
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace terrace {

HWY_EXPORT(sum_vectors);

void sum_bf16_in_order(std::span<std::byte* const> targets,
                       std::span<const std::byte* const> sources, std::size_t elements) {
  const std::size_t done = HWY_DYNAMIC_DISPATCH(sum_vectors)(targets, sources, elements);
  for (std::size_t i = done; i < elements; ++i) {
    float sum = to_float(reinterpret_cast<const Bf16*>(sources.front())[i]);
    for (const std::byte* source : sources.subspan(1)) {
      sum += to_float(reinterpret_cast<const Bf16*>(source)[i]);
    }
    for (std::byte* target : targets) {
      reinterpret_cast<Bf16*>(target)[i] = to_bf16_nearest_even(sum);
    }
  }
}

}  // namespace terrace
#endif  // HWY_ONCE
