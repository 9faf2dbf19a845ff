// How an update reads and writes vectors of slots, which are the numbers that a rule keeps of each
// element. Included once per Highway target, after rule_number.inl, parameter_vector.inl and
// moment_vector.inl; hence the guard that Highway toggles instead of `#pragma once`.
#if defined(TERRACE_OPTIM_CPU_SLOT_VECTOR_INL) == defined(HWY_TARGET_TOGGLE)
#ifdef TERRACE_OPTIM_CPU_SLOT_VECTOR_INL
#undef TERRACE_OPTIM_CPU_SLOT_VECTOR_INL
#else
#define TERRACE_OPTIM_CPU_SLOT_VECTOR_INL
#endif

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "hwy/highway.h"
#include "optim/reference_update.h"

HWY_BEFORE_NAMESPACE();
namespace terrace {
namespace HWY_NAMESPACE {

// Calls body(s) for each of Count slots; s is a constant.
template <std::size_t Count, typename Body>
HWY_INLINE void for_each_slot(const Body& body) {
  static_assert(Count <= 2);
  if constexpr (Count > 0) body(std::integral_constant<std::size_t, 0>());
  if constexpr (Count > 1) body(std::integral_constant<std::size_t, 1>());
}

// Room for one T of each slot.
template <typename T, std::size_t Count>
struct PerSlot {
  T at[Count == 0 ? 1 : Count];
};

// The places that slots come from and go to. `random` has the bits that round them: see
// moment_code.h.

template <std::size_t Count>
struct FloatSlots {
  explicit HWY_INLINE FloatSlots(const ParameterUpdate& op) {
    for_each_slot<Count>([&](auto s)
                             TERRACE_VECTOR_BODY { slots.at[s] = op.slots[s].template as<float>(); });
  }
  HWY_INLINE void get(Element<Count>& element, std::int64_t i) const {
    for_each_slot<Count>(
        [&](auto s) TERRACE_VECTOR_BODY { element.slots[s] = load(slots.at[s] + i); });
  }
  HWY_INLINE void set(const Element<Count>& element, WordVec /*random*/, std::int64_t i) const {
    for_each_slot<Count>(
        [&](auto s) TERRACE_VECTOR_BODY { store(element.slots[s], slots.at[s] + i); });
  }
  HWY_INLINE void fetch(std::int64_t i, Ahead ahead) const {
    for_each_slot<Count>([&](auto s) TERRACE_VECTOR_BODY { fetch_ahead(slots.at[s] + i, ahead); });
  }

  PerSlot<float*, Count> slots;
};

template <std::size_t Count>
struct HalfSlots {
  explicit HWY_INLINE HalfSlots(const ParameterUpdate& op) {
    for_each_slot<Count>([&](auto s)
                             TERRACE_VECTOR_BODY { slots.at[s] = op.slots[s].template as<Bf16>(); });
  }
  HWY_INLINE void get(Element<Count>& element, std::int64_t i) const {
    for_each_slot<Count>(
        [&](auto s) TERRACE_VECTOR_BODY { element.slots[s] = load(slots.at[s] + i); });
  }
  HWY_INLINE void set(const Element<Count>& element, WordVec random, std::int64_t i) const {
    for_each_slot<Count>([&](auto s) TERRACE_VECTOR_BODY {
      const WordVec bits = half_bits_of_slot<s>(random);
      store_halves(bf16_words_stochastic(element.slots[s], bits), slots.at[s] + i);
    });
  }
  HWY_INLINE void fetch(std::int64_t i, Ahead ahead) const {
    for_each_slot<Count>([&](auto s) TERRACE_VECTOR_BODY { fetch_ahead(slots.at[s] + i, ahead); });
  }

  PerSlot<Bf16*, Count> slots;
};

// The new slots of a block, until the largest ones are known. They wait in the cache, with the
// random numbers that will round them.
template <std::size_t Count>
struct NewSlots {
  alignas(64) float slots[Count][kMomentBlock];
  alignas(64) std::uint32_t random[kMomentBlock];
  std::int64_t first;
  std::uint8_t exponents[Count];
};

// One block of slots in 8 bits, read from their codes.
template <typename Rule>
class CodedSlots {
 public:
  static constexpr std::size_t kCount = kSlotCount<Rule>;
  template <std::size_t Slot>
  static constexpr bool kHasSign = Rule::kSlots[Slot].has_sign;

  HWY_INLINE CodedSlots(const ParameterUpdate& op, std::int64_t first, NewSlots<kCount>& next)
      : first_(first), next_(next) {
    for_each_slot<kCount>([&](auto s) TERRACE_VECTOR_BODY {
      codes_.at[s] = codes_of(op.slots[s]);
      const std::uint8_t exponent = codes_of(op.exponents[s])[first / kMomentBlock];
      blocks_.at[s] = BlockCodes::of<kHasSign<s>>(exponent);
      largest_.at[s] = hn::Zero(LaneWords());
    });
  }

  HWY_INLINE void get(Element<kCount>& element, std::int64_t i) const {
    for_each_slot<kCount>([&](auto s) TERRACE_VECTOR_BODY {
      element.slots[s] = blocks_.at[s].template load<kHasSign<s>>(codes_.at[s] + i);
    });
  }
  HWY_INLINE void set(const Element<kCount>& element, WordVec random, std::int64_t i) {
    const LaneWords words;
    for_each_slot<kCount>([&](auto s) TERRACE_VECTOR_BODY {
      WordVec size = hn::BitCast(words, element.slots[s]);
      if constexpr (kHasSign<s>) size = hn::And(size, hn::Set(words, 0x7fffffffU));
      largest_.at[s] = hn::Max(largest_.at[s], size);
      store(element.slots[s], next_.slots[s] + (i - first_));
    });
    hn::StoreU(random, words, next_.random + (i - first_));
  }
  // Called after all slots of the block are set.
  HWY_INLINE void finish() {
    next_.first = first_;
    for_each_slot<kCount>([&](auto s) TERRACE_VECTOR_BODY {
      const std::uint32_t largest = hn::GetLane(hn::MaxOfLanes(LaneWords(), largest_.at[s]));
      next_.exponents[s] = block_exponent(largest & 0x7fffffffU);  // only NaN may have a sign
    });
  }

 private:
  PerSlot<const std::uint8_t*, kCount> codes_;
  PerSlot<BlockCodes, kCount> blocks_;
  PerSlot<WordVec, kCount> largest_;
  std::int64_t first_;
  NewSlots<kCount>& next_;
};

// Turns new slots into their codes.
template <typename Rule>
HWY_INLINE void narrow_block(const ParameterUpdate& op, const NewSlots<kSlotCount<Rule>>& next) {
  PerSlot<BlockCodes, kSlotCount<Rule>> blocks;
  PerSlot<std::uint8_t*, kSlotCount<Rule>> codes;
  for_each_slot<kSlotCount<Rule>>([&](auto s) TERRACE_VECTOR_BODY {
    codes_of(op.exponents[s])[next.first / kMomentBlock] = next.exponents[s];
    blocks.at[s] = BlockCodes::of<Rule::kSlots[s].has_sign>(next.exponents[s]);
    codes.at[s] = codes_of(op.slots[s]) + next.first;
  });
  for (std::int64_t i = 0; i < kMomentBlock; i += kLanes) {
    const WordVec random = hn::LoadU(LaneWords(), next.random + i);
    for_each_slot<kSlotCount<Rule>>([&](auto s) TERRACE_VECTOR_BODY {
      const WordVec dropped = dropped_bits_of_slot<s>(random);
      blocks.at[s].template store<Rule::kSlots[s].has_sign>(load(next.slots[s] + i), dropped,
                                                            codes.at[s] + i);
    });
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace terrace
HWY_AFTER_NAMESPACE();

#endif  // per-target guard
