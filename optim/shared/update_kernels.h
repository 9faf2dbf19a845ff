#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "base/half.h"
#include "base/philox.h"
#include "kernels/shared/block.h"
#include "optim/moment_code.h"
#include "optim/reference_update.h"

// Updates by a rule of optim/rules/rules.h as block kernels (kernels/shared/block.h), with the same
// bits as optim/reference_update.h. On a GPU the views and the scalars are device memory.
namespace terrace::shared {

// Calls body(s) for each of Count slots; s is a constant.
template <std::size_t Count, typename Body>
TERRACE_KERNEL inline void for_each_slot(const Body& body) {
  static_assert(Count <= kMostSlots);
  if constexpr (Count > 0) body(std::integral_constant<std::size_t, 0>());
  if constexpr (Count > 1) body(std::integral_constant<std::size_t, 1>());
}

// Room for one T of each slot.
template <typename T, std::size_t Count>
struct PerSlot {
  T at[Count == 0 ? 1 : Count];
};

// The number of elements at a time: eight, so that the narrowest of fp32 and 16 bits moves 16
// bytes.
inline constexpr int kUpdatePack = 8;

// How an update's elements are stored. Slot: float, Bf16 or std::uint8_t. Master: float, or
// std::int16_t beside a Bf16 parameter.
template <typename OfRule, typename OfSlots, typename OfMasters, typename OfParameters>
struct StorageForm {
  using Rule = OfRule;
  using Slot = OfSlots;
  using Master = OfMasters;
  using Parameter = OfParameters;
  static constexpr std::size_t kSlots = kSlotCount<Rule>;
};

template <typename Form>
struct UpdateViews {
  using Master = typename Form::Master;
  using Parameter = typename Form::Parameter;

  const float* gradient;
  const Bf16* half_gradient;  // set in place of `gradient` where gradients are bf16
  Master* master;
  PerSlot<typename Form::Slot*, Form::kSlots> slots;
  Parameter* parameter;
  RuleConstants constants;
  float weight_decay;
  std::int64_t elements, decayed_elements;
  const StepScalars* scalars;
  MomentRounding rounding;
  bool aligned;

  // Return how many of the first kUpdatePack elements from `first` on there are, and how many
  // decay.
  TERRACE_KERNEL int count_from(std::int64_t first) const { return part_of_pack(elements - first); }
  TERRACE_KERNEL int decayed_from(std::int64_t first) const {
    return part_of_pack(decayed_elements - first);
  }
  // Does a skipped update of `count` elements.
  TERRACE_KERNEL void keep(std::int64_t first, int count) const {
    if constexpr (std::is_same_v<Master, float>) {
      for (int i = 0; i < count; ++i) {
        parameter[first + i] = to_parameter<Parameter>(master[first + i]);
      }
    }
  }

 private:
  TERRACE_KERNEL static int part_of_pack(std::int64_t rest) {
    if (rest >= kUpdatePack) return kUpdatePack;
    return rest > 0 ? static_cast<int>(rest) : 0;
  }
};

// Makes one word of two words' halves, for all pairs of a pack's elements.
template <typename T, std::uint32_t (*Join)(std::uint32_t, std::uint32_t), typename WordOf>
TERRACE_KERNEL Words<T, kUpdatePack> joined(const WordOf& word_of) {
  Words<T, kUpdatePack> words;
  TERRACE_UNROLL
  for (int i = 0; i < kUpdatePack; i += 2) words.at[i / 2] = Join(word_of(i), word_of(i + 1));
  return words;
}

// A thread's elements after an update.
template <std::size_t Slots>
struct NextPack {
  Floats<kUpdatePack> p;
  PerSlot<Floats<kUpdatePack>, Slots> slots;
};

// A thread's elements before an update. They stay in the form in which they are loaded until all
// are on their way: see Words.
template <typename Form>
struct HeldPack {
  using Rule = typename Form::Rule;
  using Slot = typename Form::Slot;
  using Master = typename Form::Master;
  using Parameter = typename Form::Parameter;
  using Views = UpdateViews<Form>;
  using Next = NextPack<Form::kSlots>;
  template <typename T>
  using WordsOf = Words<T, kUpdatePack>;
  using SlotWords = PerSlot<WordsOf<Slot>, Form::kSlots>;

  WordsOf<float> gradient;  // gradients in bf16 take its first half
  WordsOf<Master> master;
  WordsOf<Parameter> parameter;  // only beside a split master
  SlotWords slots;

  TERRACE_KERNEL void load(const Views& of, std::int64_t first, int count) {
    with_whole_packs<kUpdatePack>(count, of.aligned, [&](int n, bool aligned) {
      if (of.half_gradient == nullptr) {
        gradient = load_words<float, kUpdatePack>(of.gradient + first, n, aligned);
      } else {
        const auto half = load_words<Bf16, kUpdatePack>(of.half_gradient + first, n, aligned);
        TERRACE_UNROLL
        for (int i = 0; i < kUpdatePack / 2; ++i) gradient.at[i] = half.at[i];
      }
      master = load_words<Master, kUpdatePack>(of.master + first, n, aligned);
      if constexpr (!std::is_same_v<Master, float>) {
        parameter = load_words<Parameter, kUpdatePack>(of.parameter + first, n, aligned);
      }
      for_each_slot<Form::kSlots>([&](auto s) {
        slots.at[s] = load_words<Slot, kUpdatePack>(of.slots.at[s] + first, n, aligned);
      });
    });
  }

  // Returns the updated elements. slot_of(s, i) is slot s of element i.
  template <typename SlotOf>
  TERRACE_KERNEL Next update(const Views& of, const StepScalars& scalars, std::int64_t first,
                             const SlotOf& slot_of) const {
    const typename Rule::Factors factors = Rule::factors(of.constants, scalars);
    float no_decay = Rule::decay(scalars, 0.0F);
    float decay = Rule::decay(scalars, of.weight_decay);
    hide_origin(no_decay, decay);
    const int decayed = of.decayed_from(first);
    const auto gradients = gradients_of(of);
    Next next;
    TERRACE_UNROLL
    for (int i = 0; i < kUpdatePack; ++i) {
      ElementOf<Rule> element;
      element.p = exact(i);
      for_each_slot<Form::kSlots>([&](auto s) { element.slots[s] = slot_of(s, i); });
      Rule::update(factors, i < decayed ? decay : no_decay,
                   gradients.at[i] * scalars.gradient_scale, element);
      next.p.at[i] = element.p;
      for_each_slot<Form::kSlots>([&](auto s) { next.slots.at[s].at[i] = element.slots[s]; });
    }
    return next;
  }

  // The new values of a pack.
  struct Updated {
    const Floats<kUpdatePack>& exact;  // of masters
    SlotWords slots;
  };
  TERRACE_KERNEL static void store(const Views& of, std::int64_t first, int count,
                                   const Updated& updated) {
    const Floats<kUpdatePack>& exact = updated.exact;
    with_whole_packs<kUpdatePack>(count, of.aligned, [&](int n, bool aligned) {
      store_words(of.master + first, masters_of(exact), n, aligned);
      store_words(of.parameter + first, parameters_of(exact), n, aligned);
      for_each_slot<Form::kSlots>(
          [&](auto s) { store_words(of.slots.at[s] + first, updated.slots.at[s], n, aligned); });
    });
  }

 private:
  TERRACE_KERNEL static WordsOf<Master> masters_of(const Floats<kUpdatePack>& exact) {
    if constexpr (std::is_same_v<Master, float>) {
      return std::bit_cast<WordsOf<float>>(exact);
    } else {
      // The remainder of an fp32 number is its lower half: see split() of base/half.h.
      return joined<Master, lower_halves>(
          [&](int i) { return std::bit_cast<std::uint32_t>(exact.at[i]); });
    }
  }
  TERRACE_KERNEL static WordsOf<Parameter> parameters_of(const Floats<kUpdatePack>& exact) {
    if constexpr (std::is_same_v<Parameter, float>) {
      return std::bit_cast<WordsOf<float>>(exact);
    } else if constexpr (std::is_same_v<Parameter, Bf16>) {
      return joined<Bf16, upper_halves>([&](int i) {
        return bf16_in_upper_half(std::bit_cast<std::uint32_t>(exact.at[i]), kAddedForTiesAway);
      });
    } else {
      return joined<Fp16, lower_halves>(
          [&](int i) { return std::uint32_t{to_fp16_nearest_even(exact.at[i]).bits}; });
    }
  }
  TERRACE_KERNEL Floats<kUpdatePack> gradients_of(const Views& of) const {
    auto gradients = std::bit_cast<Floats<kUpdatePack>>(gradient);
    if (of.half_gradient == nullptr) return gradients;
    WordsOf<Bf16> half;
    TERRACE_UNROLL
    for (int i = 0; i < kUpdatePack / 2; ++i) half.at[i] = gradient.at[i];
    TERRACE_UNROLL
    for (int i = 0; i < kUpdatePack; ++i) gradients.at[i] = half.value(i);
    return gradients;
  }
  TERRACE_KERNEL float exact(int i) const {
    if constexpr (std::is_same_v<Master, float>) {
      return master.value(i);
    } else {
      return join({Bf16{parameter.bits(i)}, static_cast<std::int16_t>(master.bits(i))});
    }
  }
};

// The words of rounding_bits() for the elements of a block, kUpdatePack neighbours to a thread. A
// warp has a group of elements, whose Philox blocks are made once and lie in shared memory.
struct SharedRounding {
  static constexpr int kThreads = 256;
  static constexpr unsigned kPhiloxBlocks = 16;  // of a group
  static constexpr unsigned kGroupThreads = static_cast<unsigned>(kRoundingGroup) / kUpdatePack;
  static constexpr unsigned kGroups = kThreads / kGroupThreads;
  static constexpr std::int64_t kElements = kGroups * kRoundingGroup;
  static constexpr std::size_t kBytes =
      std::size_t{kGroups} * 4 * kPhiloxBlocks * sizeof(std::uint32_t);
  using Bits = Pack<std::uint32_t, kUpdatePack>;

  std::uint32_t* words;  // [kGroups][4][kPhiloxBlocks]

  TERRACE_KERNEL static std::int64_t first_of(std::int64_t block, int t) {
    return (block * kThreads + t) * kUpdatePack;
  }

  template <typename Block>
  TERRACE_KERNEL void fill(Block& block, const MomentRounding& rounding, std::uint32_t step) const {
    static_assert(Block::kThreads == kThreads);
    block.for_each_thread([&](int t) {
      const unsigned group = static_cast<unsigned>(t) / kPhiloxBlocks;
      const unsigned of_group = static_cast<unsigned>(t) % kPhiloxBlocks;
      if (group >= kGroups) return;
      const auto first = static_cast<std::uint64_t>(rounding.first_element / kRoundingGroup +
                                                    block.index() * kGroups + group);
      const auto made =
          philox({rounding.seed}, {first * kPhiloxBlocks + of_group, rounding.stream, step});
      for (unsigned word = 0; word < 4; ++word) {
        words[(group * 4 + word) * kPhiloxBlocks + of_group] = made[word];
      }
    });
    block.sync();
  }

  // Returns rounding_bits() of the elements of thread t.
  TERRACE_KERNEL Bits bits(int t) const {
    static_assert(kPhiloxBlocks % kUpdatePack == 0);
    const unsigned group = static_cast<unsigned>(t) / kGroupThreads;
    const unsigned e = static_cast<unsigned>(t) % kGroupThreads * kUpdatePack;  // of the group
    const unsigned word = group * 4 + e % 64 / 16;
    Bits bits = *reinterpret_cast<const Bits*>(words + word * kPhiloxBlocks + e % 16);
    TERRACE_UNROLL
    for (int i = 0; i < kUpdatePack; ++i) {
      bits.at[i] = turned_right(bits.at[i], static_cast<int>(e / 64 * 8));
    }
    return bits;
  }
};

// An update with slots in fp32 or bf16.
template <typename Form>
struct UpdateKernel {
  using Held = HeldPack<Form>;
  using Slot = typename Form::Slot;
  static constexpr bool kRounds = !std::is_same_v<Slot, float>;

  UpdateViews<Form> of;

  template <typename Block>
  TERRACE_KERNEL void operator()(Block& block) const {
    const SharedRounding rounding{reinterpret_cast<std::uint32_t*>(block.shared_memory())};
    typename Block::template PerThread<Held> held;
    block.for_each_thread([&](int t) {
      const std::int64_t first = SharedRounding::first_of(block.index(), t);
      const int count = of.count_from(first);
      if (count > 0) held[t].load(of, first, count);
    });
    const StepScalars scalars = *of.scalars;
    const bool skips = scalars.skips != 0;
    if constexpr (kRounds) {
      if (!skips) rounding.fill(block, of.rounding, scalars.step);
    }
    block.for_each_thread([&](int t) {
      const std::int64_t first = SharedRounding::first_of(block.index(), t);
      const int count = of.count_from(first);
      if (count == 0) return;
      if (skips) return of.keep(first, count);
      const Held& before = held[t];
      const auto next = before.update(of, scalars, first,
                                      [&](auto s, int i) { return before.slots.at[s].value(i); });
      SharedRounding::Bits random = {};
      if constexpr (kRounds) random = rounding.bits(t);
      typename Held::SlotWords slots;
      for_each_slot<Form::kSlots>([&](auto s) {
        slots.at[s] =
            rounded(next.slots.at[s], [&](int i) { return half_bits_of_slot(s, random.at[i]); });
      });
      Held::store(of, first, count, {next.p, slots});
    });
  }

  template <typename Added>
  TERRACE_KERNEL static Words<Slot, kUpdatePack> rounded(const Floats<kUpdatePack>& slots,
                                                         const Added& added) {
    if constexpr (kRounds) {
      return joined<Slot, upper_halves>([&](int i) {
        return bf16_in_upper_half(std::bit_cast<std::uint32_t>(slots.at[i]), added(i));
      });
    } else {
      return std::bit_cast<Words<Slot, kUpdatePack>>(slots);
    }
  }
};

// A thread's codes as the fp16 numbers of optim/moment_code.h, two to a word.
struct Fp16OfCodes {
  using Codes = Words<std::uint8_t, kUpdatePack>;
  static constexpr int kWords = kUpdatePack / Codes::kOfWord;

  std::uint32_t even[kWords], odd[kWords];  // of each four codes, the two at these places

  template <bool HasSign>
  TERRACE_KERNEL static Fp16OfCodes of_codes(const Codes& codes) {
    if constexpr (HasSign) {
      constexpr std::uint32_t kSizes = (kSignOfCode - 1) * 0x10001U << kShiftToFp16;
      constexpr std::uint32_t kSigns = 0x80008000U;
      Fp16OfCodes of = spread(codes, kSizes);
      TERRACE_UNROLL
      for (int w = 0; w < kWords; ++w) {
        of.even[w] |= codes.at[w] << 8 & kSigns;
        of.odd[w] |= codes.at[w] & kSigns;
      }
      return of;
    } else {
      return spread(codes, 0xffU * 0x10001U << kShiftToFp16);
    }
  }

  TERRACE_KERNEL float value(int i) const {
    const std::uint32_t pair = i % 2 == 0 ? even[i / Codes::kOfWord] : odd[i / Codes::kOfWord];
    return widened(Fp16{static_cast<std::uint16_t>(pair >> (i % Codes::kOfWord / 2 * 16))});
  }

 private:
  TERRACE_KERNEL static Fp16OfCodes spread(const Codes& codes, std::uint32_t sizes) {
    Fp16OfCodes of;
    TERRACE_UNROLL
    for (int w = 0; w < kWords; ++w) {
      of.even[w] = codes.at[w] << kShiftToFp16 & sizes;
      of.odd[w] = codes.at[w] >> (8 - kShiftToFp16) & sizes;
    }
    return of;
  }
};

// encode_size() for the sizes of a block's moments. They are multiplied so that the least normal
// number of codes becomes fp32's least normal number. Below it they are rounded to the same steps,
// and their upper bits are the code.
template <std::uint32_t Top>
struct SizeEncoder {
  float coarse, fine;  // the power of two in two factors: one would not be a normal number

  TERRACE_KERNEL explicit SizeEncoder(std::uint8_t exponent) {
    const std::uint32_t power = exponent == 0 ? 0 : exponent - Top;
    const std::uint32_t past_normal = power > 126 ? power - 126 : 0;
    coarse = std::bit_cast<float>((127 - past_normal) << 23);
    fine = std::bit_cast<float>((127 - (power - past_normal)) << 23);
  }
  TERRACE_KERNEL std::uint32_t code(float moment, std::uint32_t random) const {
    constexpr std::uint32_t kMost = (Top + 1) * (1U << kFractionBits) - 1;
    const std::uint32_t sum =
        std::bit_cast<std::uint32_t>(::fabsf(moment) * coarse * fine) + random;
    return std::min(sum >> kDroppedBits, kMost);
  }
};

// Returns the code of a new slot's number, as encode_slot() does.
template <bool HasSign>
TERRACE_KERNEL std::uint32_t code_of(const SizeEncoder<kTopExponents[HasSign ? 0 : 1]>& encoder,
                                     float number, std::uint32_t dropped) {
  const auto bits = std::bit_cast<std::uint32_t>(number);
  const std::uint32_t code = encoder.code(number, dropped);
  if constexpr (HasSign) return code | (bits >> 24 & kSignOfCode);
  return std::max(code, std::min(bits, 1U));  // a number that is not zero stays so
}

// An update with slots as codes. A warp has a block of elements, which share exponents.
template <typename Form>
struct CodedUpdateKernel {
  using Held = HeldPack<Form>;
  using Next = typename Held::Next;
  using Codes = Words<std::uint8_t, kUpdatePack>;
  using Exponents = PerSlot<std::uint8_t, Form::kSlots>;
  template <std::size_t Slot>
  static constexpr bool kHasSign = Form::Rule::kSlots[Slot].has_sign;
  template <std::size_t Slot>
  static constexpr std::uint32_t kTop = kTopExponents[kHasSign<Slot> ? 0 : 1];

  UpdateViews<Form> of;
  PerSlot<std::uint8_t*, Form::kSlots> all_exponents;

  // Returns the largest size, as bits of fp32 without a sign.
  TERRACE_KERNEL static std::uint32_t largest_size(const Floats<kUpdatePack>& slots) {
    std::uint32_t largest = 0;
    TERRACE_UNROLL
    for (int i = 0; i < kUpdatePack; ++i) {
      const std::uint32_t size = std::bit_cast<std::uint32_t>(slots.at[i]) & 0x7fffffffU;
      largest = largest < size ? size : largest;
    }
    return largest;
  }

  TERRACE_KERNEL Next update(std::int64_t first, const StepScalars& scalars, const Held& before,
                             const Exponents& exponents) const {
    PerSlot<float, Form::kSlots> scales;
    PerSlot<Fp16OfCodes, Form::kSlots> fp16;
    for_each_slot<Form::kSlots>([&](auto s) {
      scales.at[s] = scale_of_codes<kTop<s>>(exponents.at[s]);
      fp16.at[s] = Fp16OfCodes::template of_codes<kHasSign<s>>(before.slots.at[s]);
    });
    return before.update(of, scalars, first,
                         [&](auto s, int i) { return fp16.at[s].value(i) * scales.at[s]; });
  }

  TERRACE_KERNEL void store(std::int64_t first, const Next& next, const Exponents& exponents,
                            const SharedRounding::Bits& random) const {
    typename Held::SlotWords codes;
    for_each_slot<Form::kSlots>([&](auto s) {
      const SizeEncoder<kTop<s>> encoder(exponents.at[s]);
      codes.at[s] = {};
      TERRACE_UNROLL
      for (int i = 0; i < kUpdatePack; ++i) {
        const std::uint32_t dropped = dropped_bits_of_slot(s, random.at[i]);
        const std::uint32_t code = code_of<kHasSign<s>>(encoder, next.slots.at[s].at[i], dropped);
        codes.at[s].at[i / Codes::kOfWord] |= code << (i % Codes::kOfWord * 8);
      }
    });
    Held::store(of, first, kUpdatePack, {next.p, codes});
    if (first % kMomentBlock != 0) return;
    for_each_slot<Form::kSlots>(
        [&](auto s) { all_exponents.at[s][first / kMomentBlock] = exponents.at[s]; });
  }

  template <typename Block>
  TERRACE_KERNEL void operator()(Block& block) const {
    static_assert(kMomentBlock == kRoundingGroup);
    const SharedRounding rounding{reinterpret_cast<std::uint32_t*>(block.shared_memory())};
    typename Block::template PerThread<Held> held;
    typename Block::template PerThread<Exponents> exponents;
    typename Block::template PerThread<Next> next;
    PerSlot<typename Block::template PerThread<std::uint32_t>, Form::kSlots> sizes;
    block.for_each_thread([&](int t) {
      const std::int64_t first = SharedRounding::first_of(block.index(), t);
      if (first >= of.elements) {  // past the end, as is every thread of its warp
        held[t] = {};
        exponents[t] = {};
        return;
      }
      for_each_slot<Form::kSlots>(
          [&](auto s) { exponents[t].at[s] = all_exponents.at[s][first / kMomentBlock]; });
      held[t].load(of, first, kUpdatePack);
    });
    const StepScalars scalars = *of.scalars;
    if (scalars.skips != 0) {
      block.for_each_thread([&](int t) {
        const std::int64_t first = SharedRounding::first_of(block.index(), t);
        of.keep(first, of.count_from(first));
      });
      return;
    }
    rounding.fill(block, of.rounding, scalars.step);
    block.for_each_thread([&](int t) {
      const std::int64_t first = SharedRounding::first_of(block.index(), t);
      next[t] = update(first, scalars, held[t], exponents[t]);
      for_each_slot<Form::kSlots>(
          [&](auto s) { sizes.at[s][t] = largest_size(next[t].slots.at[s]); });
    });
    for_each_slot<Form::kSlots>([&](auto s) { block.warp_max(sizes.at[s]); });
    block.for_each_thread([&](int t) {
      const std::int64_t first = SharedRounding::first_of(block.index(), t);
      if (first >= of.elements) return;
      Exponents common;
      for_each_slot<Form::kSlots>([&](auto s) { common.at[s] = block_exponent(sizes.at[s][t]); });
      store(first, next[t], common, rounding.bits(t));
    });
  }
};

inline bool may_load_packs(const ParameterUpdate& update) {
  return may_load_packs({update.gradient.data, update.master.data, update.slots[0].data,
                         update.slots[1].data, update.parameter.data},
                        0);
}

template <typename Form, typename Launcher>
void update_in_form(Launcher& launcher, const ParameterUpdate& update) {
  const bool is_half = update.gradient.dtype == DType::kBF16;
  UpdateViews<Form> views{.gradient = is_half ? nullptr : update.gradient.as<float>(),
                          .half_gradient = is_half ? update.gradient.as<Bf16>() : nullptr,
                          .master = update.master.as<typename Form::Master>(),
                          .slots = {},
                          .parameter = update.parameter.as<typename Form::Parameter>(),
                          .constants = Form::Rule::constants(update.options),
                          .weight_decay = static_cast<float>(update.options.weight_decay),
                          .elements = update.gradient.elements(),
                          .decayed_elements = update.decayed_elements,
                          .scalars = update.scalars,
                          .rounding = update.rounding,
                          .aligned = may_load_packs(update)};
  for (std::size_t s = 0; s < Form::kSlots; ++s) {
    views.slots.at[s] = reinterpret_cast<typename Form::Slot*>(update.slots.at(s).data);
  }
  constexpr int kThreads = SharedRounding::kThreads;
  constexpr std::size_t kBytes = SharedRounding::kBytes;
  const std::int64_t blocks = divide_up(views.elements, SharedRounding::kElements);
  if constexpr (std::is_same_v<typename Form::Slot, std::uint8_t>) {
    CodedUpdateKernel<Form> kernel{views, {}};
    for (std::size_t s = 0; s < Form::kSlots; ++s) {
      kernel.all_exponents.at[s] = codes_of(update.exponents.at(s));
    }
    launcher.template launch<kThreads>(Form::Rule::kName, kernel, blocks, kBytes);
  } else {
    const UpdateKernel<Form> kernel{views};
    launcher.template launch<kThreads>(Form::Rule::kName, kernel, blocks, kBytes);
  }
}

template <typename Rule, typename Slot, typename Launcher>
void update_with_slots(Launcher& launcher, const ParameterUpdate& update) {
  if (update.master.dtype == DType::kI16) {
    update_in_form<StorageForm<Rule, Slot, std::int16_t, Bf16>>(launcher, update);
  } else if (update.parameter.dtype == DType::kBF16) {
    update_in_form<StorageForm<Rule, Slot, float, Bf16>>(launcher, update);
  } else if (update.parameter.dtype == DType::kF16) {
    update_in_form<StorageForm<Rule, Slot, float, Fp16>>(launcher, update);
  } else {
    update_in_form<StorageForm<Rule, Slot, float, float>>(launcher, update);
  }
}

template <typename Rule, typename Launcher>
void update(Launcher& launcher, const ParameterUpdate& update) {
  check_update(update, kSlotCount<Rule>);
  const DType slots = slot_type(update, kSlotCount<Rule>);
  if constexpr (kSlotCount<Rule> > 0) {
    if (slots == DType::kBF16) return update_with_slots<Rule, Bf16>(launcher, update);
    if (slots == DType::kU8) return update_with_slots<Rule, std::uint8_t>(launcher, update);
  }
  update_with_slots<Rule, float>(launcher, update);
}

}  // namespace terrace::shared
