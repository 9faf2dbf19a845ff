#pragma once

#include <bit>
#include <cstdint>
#include <type_traits>

#include "base/half.h"
#include "kernels/shared/map.h"
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
  TERRACE_KERNEL float gradient_at(std::int64_t i) const {
    return half_gradient == nullptr ? gradient[i] : to_float(half_gradient[i]);
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
  // The factors of an element; those of the two kinds differ in the decay alone.
  TERRACE_KERNEL AdamWFactors factors(bool decays) const {
    return adamw_factors(options, *scalars, decays);
  }
};

// Moments in fp32 or bf16.
template <typename Moment, typename Master, typename Parameter>
struct AdamWBody {
  AdamWViews<Moment, Master, Parameter> of;
  bool aligned;

  TERRACE_KERNEL void operator()(std::int64_t, std::int64_t first, std::int64_t count) const {
    using Views = AdamWViews<Moment, Master, Parameter>;
    if (of.scalars->skips != 0) {
      for (std::int64_t i = first; i < first + count; ++i) of.keep(i);
      return;
    }
    const auto gradient = of.gradients_at(first, count, aligned);
    auto master = load_pack<Master, kUpdatePack>(of.master + first, count, aligned);
    auto m = load_pack<Moment, kUpdatePack>(of.moment1 + first, count, aligned);
    auto v = load_pack<Moment, kUpdatePack>(of.moment2 + first, count, aligned);
    Pack<Parameter, kUpdatePack> parameter = {};
    if constexpr (!std::is_same_v<Master, float>) {
      parameter = load_pack<Parameter, kUpdatePack>(of.parameter + first, count, aligned);
    }
    const AdamWFactors decaying = of.factors(true);
    const AdamWFactors still = of.factors(false);
    TERRACE_UNROLL
    for (int i = 0; i < kUpdatePack; ++i) {
      const AdamWElement before = {Views::exact(master.at[i], parameter.at[i]), to_float(m.at[i]),
                                   to_float(v.at[i])};
      const AdamWElement next =
          adamw_element(first + i < of.decayed_elements ? decaying : still, gradient.at[i], before);
      std::uint32_t random = 0;
      if constexpr (!std::is_same_v<Moment, float>) {
        random = rounding_bits(of.rounding, of.scalars->step, first + i);
      }
      master.at[i] = Views::master_of(next.p);
      parameter.at[i] = Views::parameter_of(next.p);
      m.at[i] = Views::moment_of(next.m, half_bits_of_moment1(random));
      v.at[i] = Views::moment_of(next.v, half_bits_of_moment2(random));
    }
    store_pack(of.master + first, master, count, aligned);
    store_pack(of.parameter + first, parameter, count, aligned);
    store_pack(of.moment1 + first, m, count, aligned);
    store_pack(of.moment2 + first, v, count, aligned);
  }
};

// Moments as codes: a block of threads for a block of elements, which share exponents.
template <typename Master, typename Parameter>
struct CodedAdamWKernel {
  AdamWViews<std::uint8_t, Master, Parameter> of;
  std::uint8_t* exponents1;
  std::uint8_t* exponents2;

  template <typename Block>
  TERRACE_KERNEL void operator()(Block& block) const {
    static_assert(Block::kThreads == kMomentBlock);
    using Views = AdamWViews<std::uint8_t, Master, Parameter>;
    typename Block::template PerThread<AdamWElement> next;
    typename Block::template PerThread<std::uint32_t> sizes1;
    typename Block::template PerThread<std::uint32_t> sizes2;
    if (of.scalars->skips != 0) {
      block.for_each_thread([&](int t) { of.keep(block.index() * kMomentBlock + t); });
      return;
    }
    const std::uint8_t exponent1 = exponents1[block.index()];
    const std::uint8_t exponent2 = exponents2[block.index()];
    block.for_each_thread([&](int t) {
      const std::int64_t i = block.index() * kMomentBlock + t;
      const AdamWElement before = {Views::exact(of.master[i], of.parameter[i]),
                                   decode_moment1(of.moment1[i], exponent1),
                                   decode_moment2(of.moment2[i], exponent2)};
      next[t] = adamw_element(of.factors(i < of.decayed_elements), of.gradient_at(i), before);
      sizes1[t] = std::bit_cast<std::uint32_t>(next[t].m) & 0x7fffffffU;
      sizes2[t] = std::bit_cast<std::uint32_t>(next[t].v) & 0x7fffffffU;
    });
    const std::uint8_t shared1 = block_exponent(block.max(sizes1));
    const std::uint8_t shared2 = block_exponent(block.max(sizes2));
    block.for_each_thread([&](int t) {
      const std::int64_t i = block.index() * kMomentBlock + t;
      const std::uint32_t random = rounding_bits(of.rounding, of.scalars->step, i);
      const AdamWElement& element = next[t];
      of.moment1[i] = encode_moment1(element.m, shared1, dropped_bits_of_moment1(random));
      of.moment2[i] = encode_moment2(element.v, shared2, dropped_bits_of_moment2(random));
      of.master[i] = Views::master_of(element.p);
      of.parameter[i] = Views::parameter_of(element.p);
      if (t == 0) exponents1[block.index()] = shared1;
      if (t == 0) exponents2[block.index()] = shared2;
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
  if constexpr (std::is_same_v<Moment, std::uint8_t>) {
    const CodedAdamWKernel<Master, Parameter> kernel{views, codes_of(update.exponents1),
                                                     codes_of(update.exponents2)};
    launcher.template launch<static_cast<int>(kMomentBlock)>("adamw", kernel,
                                                             views.elements / kMomentBlock);
  } else {
    const bool aligned =
        may_load_packs({update.gradient.data, update.master.data, update.moment1.data,
                        update.moment2.data, update.parameter.data},
                       0);
    launch_map<kUpdatePack>(launcher, "adamw", 1, views.elements,
                            AdamWBody<Moment, Master, Parameter>{views, aligned});
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
