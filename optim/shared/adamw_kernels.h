#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "base/half.h"
#include "base/philox.h"
#include "kernels/shared/block.h"
#include "optim/adamw.h"
#include "optim/adamw_element.h"
#include "optim/moment_code.h"

// AdamW as block kernels (kernels/shared/block.h): the same bits as adamw_reference(). On a GPU the
// views and the scalars are device memory.
namespace terrace::shared {

// Eight elements at a time, so that the narrowest of fp32 and 16 bits moves 16 bytes.
inline constexpr int kUpdatePack = 8;

// How an update's elements are stored. Master: float, or std::int16_t beside a Bf16 parameter.
template <typename Moment, typename Master, typename Parameter>
struct AdamWViews {
  const float* gradient;
  const Bf16* half_gradient;  // set in place of `gradient` where gradients are bf16
  Master* master;
  Moment* moment1;
  Moment* moment2;
  Parameter* parameter;
  AdamWConstants constants;
  std::int64_t elements, decayed_elements;
  const StepScalars* scalars;
  MomentRounding rounding;
  bool aligned;

  // Of the elements from `first` on, how many of the first kUpdatePack there are, and decay.
  TERRACE_KERNEL int count_from(std::int64_t first) const { return part_of_pack(elements - first); }
  TERRACE_KERNEL int decayed_from(std::int64_t first) const {
    return part_of_pack(decayed_elements - first);
  }
  // A skipped update of `count` elements.
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

// A word of two words' halves, for all pairs of a pack's elements.
template <typename T, std::uint32_t (*Join)(std::uint32_t, std::uint32_t), typename WordOf>
TERRACE_KERNEL Words<T, kUpdatePack> joined(const WordOf& word_of) {
  Words<T, kUpdatePack> words;
  TERRACE_UNROLL
  for (int i = 0; i < kUpdatePack; i += 2) words.at[i / 2] = Join(word_of(i), word_of(i + 1));
  return words;
}

// What an update makes of a thread's elements.
struct NextPack {
  Floats<kUpdatePack> p, m, v;
};

// A thread's elements as they were, and as they are loaded until all are on their way: see Words.
template <typename Moment, typename Master, typename Parameter>
struct HeldPack {
  using Views = AdamWViews<Moment, Master, Parameter>;
  template <typename T>
  using WordsOf = Words<T, kUpdatePack>;

  WordsOf<float> gradient;  // gradients in bf16 take its first half
  WordsOf<Master> master;
  WordsOf<Parameter> parameter;  // beside a split master alone
  WordsOf<Moment> moment1, moment2;

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
      moment1 = load_words<Moment, kUpdatePack>(of.moment1 + first, n, aligned);
      moment2 = load_words<Moment, kUpdatePack>(of.moment2 + first, n, aligned);
    });
  }

  // m_of(i), v_of(i): the moments of element i.
  template <typename FirstMoment, typename SecondMoment>
  TERRACE_KERNEL NextPack update(const Views& of, const StepScalars& scalars, std::int64_t first,
                                 const FirstMoment& m_of, const SecondMoment& v_of) const {
    AdamWFactors factors = adamw_factors(of.constants, scalars, false);
    float minus_no_decay = factors.minus_decay;
    float minus_decay = adamw_factors(of.constants, scalars, true).minus_decay;
    hide_origin(minus_no_decay, minus_decay);
    const int decayed = of.decayed_from(first);
    const auto gradients = gradients_of(of);
    NextPack next;
    TERRACE_UNROLL
    for (int i = 0; i < kUpdatePack; ++i) {
      factors.minus_decay = i < decayed ? minus_decay : minus_no_decay;
      const AdamWElement element =
          adamw_element(factors, gradients.at[i], {exact(i), m_of(i), v_of(i)});
      next.p.at[i] = element.p;
      next.m.at[i] = element.m;
      next.v.at[i] = element.v;
    }
    return next;
  }

  // The new values of a pack.
  struct Updated {
    const Floats<kUpdatePack>& exact;  // of masters
    WordsOf<Moment> moment1, moment2;
  };
  TERRACE_KERNEL static void store(const Views& of, std::int64_t first, int count,
                                   const Updated& updated) {
    const Floats<kUpdatePack>& exact = updated.exact;
    with_whole_packs<kUpdatePack>(count, of.aligned, [&](int n, bool aligned) {
      store_words(of.master + first, masters_of(exact), n, aligned);
      store_words(of.parameter + first, parameters_of(exact), n, aligned);
      store_words(of.moment1 + first, updated.moment1, n, aligned);
      store_words(of.moment2 + first, updated.moment2, n, aligned);
    });
  }

 private:
  TERRACE_KERNEL static WordsOf<Master> masters_of(const Floats<kUpdatePack>& exact) {
    if constexpr (std::is_same_v<Master, float>) {
      return std::bit_cast<WordsOf<float>>(exact);
    } else {
      // What is left of an fp32 number is its lower half: split() of base/half.h.
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

// The words of rounding_bits() for the elements of a block, kUpdatePack neighbours to a thread:
// a warp has a group of elements, whose Philox blocks are made once and lie in shared memory.
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

  // rounding_bits() of the elements of thread t.
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

// Moments in fp32 or bf16.
template <typename Moment, typename Master, typename Parameter>
struct AdamWKernel {
  using Held = HeldPack<Moment, Master, Parameter>;
  using MomentWords = typename Held::template WordsOf<Moment>;
  static constexpr bool kRounds = !std::is_same_v<Moment, float>;

  AdamWViews<Moment, Master, Parameter> of;

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
      const NextPack next = before.update(
          of, scalars, first, [&](int i) { return before.moment1.value(i); },
          [&](int i) { return before.moment2.value(i); });
      SharedRounding::Bits random = {};
      if constexpr (kRounds) random = rounding.bits(t);
      Held::store(
          of, first, count,
          {next.p, rounded(next.m, [&](int i) { return half_bits_of_moment1(random.at[i]); }),
           rounded(next.v, [&](int i) { return half_bits_of_moment2(random.at[i]); })});
    });
  }

  template <typename Added>
  TERRACE_KERNEL static MomentWords rounded(const Floats<kUpdatePack>& moments,
                                            const Added& added) {
    if constexpr (kRounds) {
      return joined<Moment, upper_halves>([&](int i) {
        return bf16_in_upper_half(std::bit_cast<std::uint32_t>(moments.at[i]), added(i));
      });
    } else {
      return std::bit_cast<MomentWords>(moments);
    }
  }
};

// A thread's codes as the fp16 numbers of optim/moment_code.h, two to a word.
struct Fp16OfCodes {
  using Codes = Words<std::uint8_t, kUpdatePack>;
  static constexpr int kWords = kUpdatePack / Codes::kOfWord;

  std::uint32_t even[kWords], odd[kWords];  // of each four codes, the two at such places

  TERRACE_KERNEL static Fp16OfCodes of_moment1(const Codes& codes) {
    constexpr std::uint32_t kSizes = (kSignOfCode - 1) * 0x10001U << kShiftToFp16;
    constexpr std::uint32_t kSigns = 0x80008000U;
    Fp16OfCodes of = spread(codes, kSizes);
    TERRACE_UNROLL
    for (int w = 0; w < kWords; ++w) {
      of.even[w] |= codes.at[w] << 8 & kSigns;
      of.odd[w] |= codes.at[w] & kSigns;
    }
    return of;
  }
  TERRACE_KERNEL static Fp16OfCodes of_moment2(const Codes& codes) {
    return spread(codes, 0xffU * 0x10001U << kShiftToFp16);
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

// encode_size() of the sizes of a block's moments: multiplied so that the least normal number of
// codes becomes that of fp32, they are rounded to the same steps below it, and their upper bits are
// the code.
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

// Moments as codes: a warp for a block of elements, which share exponents.
template <typename Master, typename Parameter>
struct CodedAdamWKernel {
  using Held = HeldPack<std::uint8_t, Master, Parameter>;
  using Codes = Words<std::uint8_t, kUpdatePack>;
  struct Exponents {
    std::uint8_t first, second;
  };

  AdamWViews<std::uint8_t, Master, Parameter> of;
  std::uint8_t* exponents1;
  std::uint8_t* exponents2;

  // As bits of fp32 without a sign.
  TERRACE_KERNEL static std::uint32_t largest_size(const Floats<kUpdatePack>& moments) {
    std::uint32_t largest = 0;
    TERRACE_UNROLL
    for (int i = 0; i < kUpdatePack; ++i) {
      const std::uint32_t size = std::bit_cast<std::uint32_t>(moments.at[i]) & 0x7fffffffU;
      largest = largest < size ? size : largest;
    }
    return largest;
  }

  TERRACE_KERNEL NextPack update(std::int64_t first, const StepScalars& scalars, const Held& before,
                                 const Exponents& exponents) const {
    const float scale1 = scale_of_codes<kTopExponents[0]>(exponents.first);
    const float scale2 = scale_of_codes<kTopExponents[1]>(exponents.second);
    const auto m = Fp16OfCodes::of_moment1(before.moment1);
    const auto v = Fp16OfCodes::of_moment2(before.moment2);
    return before.update(
        of, scalars, first, [&](int i) { return m.value(i) * scale1; },
        [&](int i) { return v.value(i) * scale2; });
  }

  TERRACE_KERNEL void store(std::int64_t first, const NextPack& next, const Exponents& exponents,
                            const SharedRounding::Bits& random) const {
    const SizeEncoder<kTopExponents[0]> encoder1(exponents.first);
    const SizeEncoder<kTopExponents[1]> encoder2(exponents.second);
    Codes m = {};
    Codes v = {};
    TERRACE_UNROLL
    for (int i = 0; i < kUpdatePack; ++i) {
      const int shift = i % Codes::kOfWord * 8;
      const auto bits1 = std::bit_cast<std::uint32_t>(next.m.at[i]);
      const auto bits2 = std::bit_cast<std::uint32_t>(next.v.at[i]);
      const std::uint32_t code1 =
          encoder1.code(next.m.at[i], dropped_bits_of_moment1(random.at[i])) |
          (bits1 >> 24 & kSignOfCode);
      // What is not zero stays so, as encode_moment2() has it.
      const std::uint32_t code2 = std::max(
          encoder2.code(next.v.at[i], dropped_bits_of_moment2(random.at[i])), std::min(bits2, 1U));
      m.at[i / Codes::kOfWord] |= code1 << shift;
      v.at[i / Codes::kOfWord] |= code2 << shift;
    }
    Held::store(of, first, kUpdatePack, {next.p, m, v});
    if (first % kMomentBlock != 0) return;
    exponents1[first / kMomentBlock] = exponents.first;
    exponents2[first / kMomentBlock] = exponents.second;
  }

  template <typename Block>
  TERRACE_KERNEL void operator()(Block& block) const {
    static_assert(kMomentBlock == kRoundingGroup);
    const SharedRounding rounding{reinterpret_cast<std::uint32_t*>(block.shared_memory())};
    typename Block::template PerThread<Held> held;
    typename Block::template PerThread<Exponents> exponents;
    typename Block::template PerThread<NextPack> next;
    typename Block::template PerThread<std::uint32_t> sizes1;
    typename Block::template PerThread<std::uint32_t> sizes2;
    block.for_each_thread([&](int t) {
      const std::int64_t first = SharedRounding::first_of(block.index(), t);
      if (first >= of.elements) {  // nor has any other thread of its warp
        held[t] = {};
        exponents[t] = {};
        return;
      }
      exponents[t] = {exponents1[first / kMomentBlock], exponents2[first / kMomentBlock]};
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
      sizes1[t] = largest_size(next[t].m);
      sizes2[t] = largest_size(next[t].v);
    });
    block.warp_max(sizes1);
    block.warp_max(sizes2);
    block.for_each_thread([&](int t) {
      const std::int64_t first = SharedRounding::first_of(block.index(), t);
      if (first >= of.elements) return;
      store(first, next[t], {block_exponent(sizes1[t]), block_exponent(sizes2[t])},
            rounding.bits(t));
    });
  }
};

template <typename Moment, typename Master, typename Parameter, typename Launcher>
void adamw_of(Launcher& launcher, const ParameterUpdate& update) {
  const bool is_half = update.gradient.dtype == DType::kBF16;
  const AdamWViews<Moment, Master, Parameter> views{
      .gradient = is_half ? nullptr : update.gradient.as<float>(),
      .half_gradient = is_half ? update.gradient.as<Bf16>() : nullptr,
      .master = update.master.as<Master>(),
      .moment1 = reinterpret_cast<Moment*>(update.slots[0].data),
      .moment2 = reinterpret_cast<Moment*>(update.slots[1].data),
      .parameter = update.parameter.as<Parameter>(),
      .constants = adamw_constants(update.options),
      .elements = update.gradient.elements(),
      .decayed_elements = update.decayed_elements,
      .scalars = update.scalars,
      .rounding = update.rounding,
      .aligned = may_load_packs({update.gradient.data, update.master.data, update.slots[0].data,
                                 update.slots[1].data, update.parameter.data},
                                0)};
  constexpr int kThreads = SharedRounding::kThreads;
  const std::int64_t blocks = divide_up(views.elements, SharedRounding::kElements);
  if constexpr (std::is_same_v<Moment, std::uint8_t>) {
    const CodedAdamWKernel<Master, Parameter> kernel{views, codes_of(update.exponents[0]),
                                                     codes_of(update.exponents[1])};
    launcher.template launch<kThreads>("adamw", kernel, blocks, SharedRounding::kBytes);
  } else {
    const AdamWKernel<Moment, Master, Parameter> kernel{views};
    launcher.template launch<kThreads>("adamw", kernel, blocks, SharedRounding::kBytes);
  }
}

template <typename Moment, typename Launcher>
void adamw_with_moments(Launcher& launcher, const ParameterUpdate& update) {
  if (update.master.dtype == DType::kI16) {
    adamw_of<Moment, std::int16_t, Bf16>(launcher, update);
  } else if (update.parameter.dtype == DType::kBF16) {
    adamw_of<Moment, float, Bf16>(launcher, update);
  } else if (update.parameter.dtype == DType::kF16) {
    adamw_of<Moment, float, Fp16>(launcher, update);
  } else {
    adamw_of<Moment, float, float>(launcher, update);
  }
}

template <typename Launcher>
void adamw(Launcher& launcher, const ParameterUpdate& update) {
  check_adamw_update(update);
  if (update.slots[0].dtype == DType::kF32) return adamw_with_moments<float>(launcher, update);
  if (update.slots[0].dtype == DType::kBF16) return adamw_with_moments<Bf16>(launcher, update);
  adamw_with_moments<std::uint8_t>(launcher, update);
}

}  // namespace terrace::shared
