#pragma once

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
  AdamWOptions options;
  std::int64_t elements, decayed_elements;
  const StepScalars* scalars;
  MomentRounding rounding;

  TERRACE_KERNEL static float exact(Master master, Parameter parameter) {
    if constexpr (std::is_same_v<Master, float>) {
      return master;
    } else {
      return join({parameter, master});
    }
  }
  TERRACE_KERNEL static Master master_of(float value) {
    if constexpr (std::is_same_v<Master, float>) {
      return value;
    } else {
      return split(value).remainder;
    }
  }
  TERRACE_KERNEL static Parameter parameter_of(float value) {
    return to_parameter<Parameter>(value);
  }
  // A skipped update of one element.
  TERRACE_KERNEL void keep(std::int64_t i) const {
    if constexpr (std::is_same_v<Master, float>) parameter[i] = parameter_of(master[i]);
  }
  TERRACE_KERNEL static Moment moment_of(float value, std::uint32_t random) {
    if constexpr (std::is_same_v<Moment, float>) {
      return value;
    } else {
      return to_bf16_stochastic(value, random);
    }
  }
  TERRACE_KERNEL Pack<float, kUpdatePack> gradients_at(std::int64_t first, std::int64_t count,
                                                       bool aligned) const {
    if (half_gradient == nullptr) {
      return load_pack<float, kUpdatePack>(gradient + first, count, aligned);
    }
    const auto half = load_pack<Bf16, kUpdatePack>(half_gradient + first, count, aligned);
    Pack<float, kUpdatePack> wide;
    TERRACE_UNROLL
    for (int i = 0; i < kUpdatePack; ++i) wide.at[i] = to_float(half.at[i]);
    return wide;
  }
  // The factors of elements; those of the two kinds differ in the decay alone. (To choose between
  // two structs would put both into local memory.)
  struct Factors {
    AdamWFactors still;
    float minus_decay;

    TERRACE_KERNEL AdamWFactors of(bool decays) const {
      AdamWFactors factors = still;
      if (decays) factors.minus_decay = minus_decay;
      return factors;
    }
  };
  TERRACE_KERNEL Factors factors() const {
    return {adamw_factors(options, *scalars, false),
            adamw_factors(options, *scalars, true).minus_decay};
  }
};

// What a thread loads and stores of its elements beside their moments.
template <typename Moment, typename Master, typename Parameter>
struct UpdatedPack {
  using Views = AdamWViews<Moment, Master, Parameter>;

  Pack<float, kUpdatePack> gradient;
  Pack<Master, kUpdatePack> master;
  Pack<Parameter, kUpdatePack> parameter;

  TERRACE_KERNEL UpdatedPack(const Views& of, std::int64_t first, std::int64_t count, bool aligned)
      : gradient(of.gradients_at(first, count, aligned)),
        master(load_pack<Master, kUpdatePack>(of.master + first, count, aligned)),
        parameter{} {
    if constexpr (!std::is_same_v<Master, float>) {
      parameter = load_pack<Parameter, kUpdatePack>(of.parameter + first, count, aligned);
    }
  }
  // Element i, whose moments are m and v, and its next parameter in place.
  TERRACE_KERNEL AdamWElement update(int i, const AdamWFactors& factors, float m, float v) {
    const AdamWElement before = {Views::exact(master.at[i], parameter.at[i]), m, v};
    const AdamWElement next = adamw_element(factors, gradient.at[i], before);
    master.at[i] = Views::master_of(next.p);
    parameter.at[i] = Views::parameter_of(next.p);
    return next;
  }
  TERRACE_KERNEL void store(const Views& of, std::int64_t first, std::int64_t count,
                            bool aligned) const {
    store_pack(of.master + first, master, count, aligned);
    store_pack(of.parameter + first, parameter, count, aligned);
  }
};

// The words of rounding_bits() for the elements of a block, kUpdatePack neighbours to a thread:
// a warp has a group of elements, whose Philox blocks are made once and lie in shared memory.
struct SharedRounding {
  static constexpr int kThreads = 256;
  static constexpr int kPhiloxBlocks = 16;  // of a group
  static constexpr int kGroupThreads = static_cast<int>(kRoundingGroup) / kUpdatePack;
  static constexpr int kGroups = kThreads / kGroupThreads;
  static constexpr std::int64_t kElements = kGroups * kRoundingGroup;
  static constexpr std::size_t kBytes = kGroups * 4 * kPhiloxBlocks * sizeof(std::uint32_t);

  std::uint32_t* words;  // [kGroups][4][kPhiloxBlocks]

  template <typename Block>
  TERRACE_KERNEL void fill(Block& block, const MomentRounding& rounding, std::uint32_t step) const {
    static_assert(Block::kThreads == kThreads);
    block.for_each_thread([&](int t) {
      if (t >= kGroups * kPhiloxBlocks) return;
      const std::int64_t group = block.index() * kGroups + t / kPhiloxBlocks;
      const auto first =
          static_cast<std::uint64_t>(rounding.first_element / kRoundingGroup + group);
      const auto made = philox({rounding.seed},
                               {first * kPhiloxBlocks + t % kPhiloxBlocks, rounding.stream, step});
      for (int word = 0; word < 4; ++word) {
        words[(t / kPhiloxBlocks * 4 + word) * kPhiloxBlocks + t % kPhiloxBlocks] = made[word];
      }
    });
    block.sync();
  }

  // rounding_bits() of the i-th element of thread t.
  TERRACE_KERNEL std::uint32_t bits(int t, int i) const {
    const int e = t % kGroupThreads * kUpdatePack;  // of the group; i is below 16
    const int word = t / kGroupThreads * 4 + e % 64 / 16;
    return std::rotr(words[word * kPhiloxBlocks + e % 16 + i], e / 64 * 8);
  }
};

// Moments in fp32 or bf16.
template <typename Moment, typename Master, typename Parameter>
struct AdamWKernel {
  AdamWViews<Moment, Master, Parameter> of;
  bool aligned;

  template <typename Block>
  TERRACE_KERNEL void operator()(Block& block) const {
    const SharedRounding rounding{reinterpret_cast<std::uint32_t*>(block.shared_memory())};
    const bool skips = of.scalars->skips != 0;
    if constexpr (!std::is_same_v<Moment, float>) {
      if (!skips) rounding.fill(block, of.rounding, of.scalars->step);
    }
    block.for_each_thread([&](int t) {
      const std::int64_t first = (block.index() * Block::kThreads + t) * kUpdatePack;
      const std::int64_t rest = of.elements - first;
      if (rest <= 0) return;
      const int count = rest < kUpdatePack ? static_cast<int>(rest) : kUpdatePack;
      if (skips) {
        for (int i = 0; i < count; ++i) of.keep(first + i);
      } else {
        update(t, first, count, rounding);
      }
    });
  }

  TERRACE_KERNEL void update(int t, std::int64_t first, int count,
                             const SharedRounding& rounding) const {
    using Views = AdamWViews<Moment, Master, Parameter>;
    UpdatedPack<Moment, Master, Parameter> pack(of, first, count, aligned);
    auto m = load_pack<Moment, kUpdatePack>(of.moment1 + first, count, aligned);
    auto v = load_pack<Moment, kUpdatePack>(of.moment2 + first, count, aligned);
    const auto factors = of.factors();
    TERRACE_UNROLL
    for (int i = 0; i < kUpdatePack; ++i) {
      const AdamWElement next = pack.update(i, factors.of(first + i < of.decayed_elements),
                                            to_float(m.at[i]), to_float(v.at[i]));
      const std::uint32_t random = std::is_same_v<Moment, float> ? 0 : rounding.bits(t, i);
      m.at[i] = Views::moment_of(next.m, half_bits_of_moment1(random));
      v.at[i] = Views::moment_of(next.v, half_bits_of_moment2(random));
    }
    pack.store(of, first, count, aligned);
    store_pack(of.moment1 + first, m, count, aligned);
    store_pack(of.moment2 + first, v, count, aligned);
  }
};

// Moments as codes: a warp for a block of elements, which share exponents.
template <typename Master, typename Parameter>
struct CodedAdamWKernel {
  using Views = AdamWViews<std::uint8_t, Master, Parameter>;
  using Codes = Pack<std::uint8_t, kUpdatePack>;

  Views of;
  std::uint8_t* exponents1;
  std::uint8_t* exponents2;
  bool aligned;

  using Moments = Floats<kUpdatePack>;
  struct Next {
    Moments m, v;
  };

  // As bits of fp32 without a sign.
  TERRACE_KERNEL static std::uint32_t largest_size(const Moments& moments) {
    std::uint32_t largest = 0;
    TERRACE_UNROLL
    for (int i = 0; i < kUpdatePack; ++i) {
      const std::uint32_t size = std::bit_cast<std::uint32_t>(moments.at[i]) & 0x7fffffffU;
      largest = largest < size ? size : largest;
    }
    return largest;
  }

  TERRACE_KERNEL static std::int64_t first_of(std::int64_t block, int t) {
    return (block * SharedRounding::kThreads + t) * kUpdatePack;
  }

  TERRACE_KERNEL Next update(std::int64_t first) const {
    UpdatedPack<std::uint8_t, Master, Parameter> pack(of, first, kUpdatePack, aligned);
    const Codes m = load_pack<std::uint8_t, kUpdatePack>(of.moment1 + first, kUpdatePack, aligned);
    const Codes v = load_pack<std::uint8_t, kUpdatePack>(of.moment2 + first, kUpdatePack, aligned);
    const std::uint8_t exponent1 = exponents1[first / kMomentBlock];
    const std::uint8_t exponent2 = exponents2[first / kMomentBlock];
    const auto factors = of.factors();
    Next next;
    TERRACE_UNROLL
    for (int i = 0; i < kUpdatePack; ++i) {
      const AdamWElement element =
          pack.update(i, factors.of(first + i < of.decayed_elements),
                      decode_moment1(m.at[i], exponent1), decode_moment2(v.at[i], exponent2));
      next.m.at[i] = element.m;
      next.v.at[i] = element.v;
    }
    pack.store(of, first, kUpdatePack, aligned);
    return next;
  }

  TERRACE_KERNEL void store_moments(int t, std::int64_t first, const Next& next,
                                    std::uint8_t exponent1, std::uint8_t exponent2,
                                    const SharedRounding& rounding) const {
    Codes m;
    Codes v;
    TERRACE_UNROLL
    for (int i = 0; i < kUpdatePack; ++i) {
      const std::uint32_t random = rounding.bits(t, i);
      m.at[i] = encode_moment1(next.m.at[i], exponent1, dropped_bits_of_moment1(random));
      v.at[i] = encode_moment2(next.v.at[i], exponent2, dropped_bits_of_moment2(random));
    }
    store_pack(of.moment1 + first, m, kUpdatePack, aligned);
    store_pack(of.moment2 + first, v, kUpdatePack, aligned);
    if (first % kMomentBlock != 0) return;
    exponents1[first / kMomentBlock] = exponent1;
    exponents2[first / kMomentBlock] = exponent2;
  }

  template <typename Block>
  TERRACE_KERNEL void operator()(Block& block) const {
    static_assert(kMomentBlock == kRoundingGroup);
    typename Block::template PerThread<Next> next;
    typename Block::template PerThread<std::uint32_t> sizes1;
    typename Block::template PerThread<std::uint32_t> sizes2;
    if (of.scalars->skips != 0) {
      block.for_each_thread([&](int t) {
        const std::int64_t first = first_of(block.index(), t);
        for (int i = 0; i < kUpdatePack && first < of.elements; ++i) of.keep(first + i);
      });
      return;
    }
    const SharedRounding rounding{reinterpret_cast<std::uint32_t*>(block.shared_memory())};
    rounding.fill(block, of.rounding, of.scalars->step);
    block.for_each_thread([&](int t) {
      const std::int64_t first = first_of(block.index(), t);
      next[t] = {};
      if (first < of.elements) next[t] = update(first);
      sizes1[t] = largest_size(next[t].m);
      sizes2[t] = largest_size(next[t].v);
    });
    block.warp_max(sizes1);
    block.warp_max(sizes2);
    block.for_each_thread([&](int t) {
      const std::int64_t first = first_of(block.index(), t);
      if (first >= of.elements) return;
      store_moments(t, first, next[t], block_exponent(sizes1[t]), block_exponent(sizes2[t]),
                    rounding);
    });
  }
};

template <typename Moment, typename Master, typename Parameter, typename Launcher>
void adamw_of(Launcher& launcher, const AdamWUpdate& update) {
  const bool is_half = update.gradient.dtype == DType::kBF16;
  const AdamWViews<Moment, Master, Parameter> views{is_half ? nullptr : update.gradient.as<float>(),
                                                    is_half ? update.gradient.as<Bf16>() : nullptr,
                                                    update.master.as<Master>(),
                                                    reinterpret_cast<Moment*>(update.moment1.data),
                                                    reinterpret_cast<Moment*>(update.moment2.data),
                                                    update.parameter.as<Parameter>(),
                                                    update.options,
                                                    update.gradient.elements(),
                                                    update.decayed_elements,
                                                    update.scalars,
                                                    update.rounding};
  const bool aligned =
      may_load_packs({update.gradient.data, update.master.data, update.moment1.data,
                      update.moment2.data, update.parameter.data},
                     0);
  constexpr int kThreads = SharedRounding::kThreads;
  const std::int64_t blocks = divide_up(views.elements, SharedRounding::kElements);
  if constexpr (std::is_same_v<Moment, std::uint8_t>) {
    const CodedAdamWKernel<Master, Parameter> kernel{views, codes_of(update.exponents1),
                                                     codes_of(update.exponents2), aligned};
    launcher.template launch<kThreads>("adamw", kernel, blocks, SharedRounding::kBytes);
  } else {
    const AdamWKernel<Moment, Master, Parameter> kernel{views, aligned};
    launcher.template launch<kThreads>("adamw", kernel, blocks, SharedRounding::kBytes);
  }
}

template <typename Moment, typename Launcher>
void adamw_with_moments(Launcher& launcher, const AdamWUpdate& update) {
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
void adamw(Launcher& launcher, const AdamWUpdate& update) {
  check_adamw_update(update);
  if (update.moment1.dtype == DType::kF32) return adamw_with_moments<float>(launcher, update);
  if (update.moment1.dtype == DType::kBF16) return adamw_with_moments<Bf16>(launcher, update);
  adamw_with_moments<std::uint8_t>(launcher, update);
}

}  // namespace terrace::shared
