#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "kernels/cpu/highway_targets.h"
#include "kernels/cpu/parallel_blocks.h"
#include "optim/adamw.h"
#include "optim/adamw_element.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "optim/cpu/adamw_cpu.cc"
#include "hwy/cache_control.h"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
#include "kernels/cpu/cpu_vector.inl"
#include "optim/cpu/moment_vector.inl"

// One pass over the state: every element is read and written once. All that is read is fetched 1
// KiB ahead and written with ordinary stores, because a non-temporal store to a line that was just
// read is slow. Parameters beside a whole master are never read and bypass the cache.

// The sequence needs a fused multiply-add in one rounding. Where the instruction set has none, the
// scalar definition runs, with std::fma.
#undef TERRACE_NATIVE_FMA
#if HWY_TARGET == HWY_AVX2 || HWY_TARGET == HWY_AVX3 || HWY_TARGET == HWY_AVX3_DL || \
    HWY_TARGET == HWY_PPC8 || (HWY_TARGET == HWY_NEON && HWY_ARCH_ARM_A64)
#define TERRACE_NATIVE_FMA 1
#else
#define TERRACE_NATIVE_FMA 0
#endif

HWY_BEFORE_NAMESPACE();
namespace terrace {
namespace HWY_NAMESPACE {

#if TERRACE_NATIVE_FMA

inline constexpr std::int64_t kStep = 32;  // elements: a cache line of bf16
inline constexpr std::int64_t kAheadBytes = 1024;

// Fetches the lines of one step, ahead.
template <typename T>
HWY_INLINE void fetch_ahead(const T* step) {
  constexpr std::int64_t kAhead = kAheadBytes / static_cast<std::int64_t>(sizeof(T));
  constexpr std::int64_t kLine = 64 / static_cast<std::int64_t>(sizeof(T));
  for (std::int64_t line = 0; line < kStep; line += kLine) hwy::Prefetch(step + kAhead + line);
}

// Where parameters come from and go to, in the three forms of optim/adamw.h. `stream` is for
// parameters that are written only and aligned.

struct WholeMaster {
  float* master;
  HWY_INLINE Vec get(std::int64_t i) const { return load(master + i); }
  HWY_INLINE void set(Vec p, std::int64_t i) const { store(p, master + i); }
  HWY_INLINE void fetch(std::int64_t i) const { fetch_ahead(master + i); }
};

struct MasterAndFloat {
  float* master;
  float* parameter;
  HWY_INLINE Vec get(std::int64_t i) const { return load(master + i); }
  HWY_INLINE void set(Vec p, std::int64_t i) const {
    store(p, master + i);
    store(p, parameter + i);
  }
  HWY_INLINE void fetch(std::int64_t i) const { fetch_ahead(master + i); }
};

// to_fp16_nearest_even() of base/half.h.
HWY_INLINE WordVec fp16_words_nearest_even(Vec value) {
  const LaneWords words;
  const auto set = [=](std::uint32_t bits) TERRACE_VECTOR_BODY { return hn::Set(words, bits); };
  const WordVec bits = hn::BitCast(words, value);
  const WordVec magnitude = hn::And(bits, set(0x7fffffffU));
  const Vec shifted = hn::Add(hn::BitCast(Lanes(), magnitude), splat(0.5F));
  const WordVec denormal = hn::Sub(hn::BitCast(words, shifted), set(0x3f000000U));
  const WordVec odd = hn::And(hn::ShiftRight<13>(magnitude), set(1));
  const WordVec rebased = hn::Sub(magnitude, set(0x38000000U));
  const WordVec normal = hn::ShiftRight<13>(hn::Add(hn::Add(rebased, set(0xfffU)), odd));
  WordVec rounded = hn::IfThenElse(hn::Lt(magnitude, set(0x38800000U)), denormal, normal);
  rounded = hn::IfThenElse(hn::Gt(magnitude, set(0x477fffffU)), set(0x7c00U), rounded);
  rounded = hn::IfThenElse(hn::Gt(magnitude, set(0x7f800000U)), set(0x7e00U), rounded);
  return hn::Or(rounded, hn::And(hn::ShiftRight<16>(bits), set(0x8000U)));
}

HWY_INLINE WordVec parameter_words(Vec value, const Bf16* /*type*/) {
  return bf16_words_ties_away(value);
}
HWY_INLINE WordVec parameter_words(Vec value, const Fp16* /*type*/) {
  return fp16_words_nearest_even(value);
}

template <typename Half, bool PastCache>
struct MasterAndHalf {
  float* master;
  Half* parameter;
  HWY_INLINE Vec get(std::int64_t i) const { return load(master + i); }
  HWY_INLINE void set(Vec p, std::int64_t i) const {
    store(p, master + i);
    const auto words = hn::TruncateTo(LaneHalves(), parameter_words(p, parameter));
    auto* const to = reinterpret_cast<std::uint16_t*>(parameter + i);
    if constexpr (PastCache) {
      hn::Stream(words, LaneHalves(), to);
    } else {
      hn::StoreU(words, LaneHalves(), to);
    }
  }
  HWY_INLINE void fetch(std::int64_t i) const { fetch_ahead(master + i); }
};

struct SplitMaster {
  std::int16_t* remainder;
  Bf16* parameter;
  HWY_INLINE Vec get(std::int64_t i) const {
    const hn::RebindToSigned<Lanes> signed_words;
    const hn::Rebind<std::int16_t, Lanes> signed_halves;
    const auto high = hn::BitCast(signed_words, load(parameter + i));
    const auto low = hn::PromoteTo(signed_words, hn::LoadU(signed_halves, remainder + i));
    return hn::BitCast(Lanes(), hn::Add(high, low));
  }
  HWY_INLINE void set(Vec p, std::int64_t i) const {
    store_halves(bf16_words_ties_away(p), parameter + i);
    hn::StoreU(hn::TruncateTo(LaneHalves(), hn::BitCast(LaneWords(), p)), LaneHalves(),
               reinterpret_cast<std::uint16_t*>(remainder + i));
  }
  HWY_INLINE void fetch(std::int64_t i) const {
    fetch_ahead(remainder + i);
    fetch_ahead(parameter + i);
  }
};

// Where moments come from and go to. `random` has 16 bits for each moment of a lane.

struct FloatMoments {
  float *moment1, *moment2;
  HWY_INLINE Vec get1(std::int64_t i) const { return load(moment1 + i); }
  HWY_INLINE Vec get2(std::int64_t i) const { return load(moment2 + i); }
  HWY_INLINE void set(Vec m, Vec v, WordVec /*random*/, std::int64_t i) const {
    store(m, moment1 + i);
    store(v, moment2 + i);
  }
  HWY_INLINE void fetch(std::int64_t i) const {
    fetch_ahead(moment1 + i);
    fetch_ahead(moment2 + i);
  }
};

struct HalfMoments {
  Bf16 *moment1, *moment2;
  HWY_INLINE Vec get1(std::int64_t i) const { return load(moment1 + i); }
  HWY_INLINE Vec get2(std::int64_t i) const { return load(moment2 + i); }
  HWY_INLINE void set(Vec m, Vec v, WordVec random, std::int64_t i) const {
    store_halves(bf16_words_stochastic(m, bits_of_moment1(random)), moment1 + i);
    store_halves(bf16_words_stochastic(v, bits_of_moment2(random)), moment2 + i);
  }
  HWY_INLINE void fetch(std::int64_t i) const {
    fetch_ahead(moment1 + i);
    fetch_ahead(moment2 + i);
  }
};

// One block of 8-bit moments. They are read from their codes; new ones wait in `wide` with the
// random numbers that will round them, until the largest of the block are known.
struct CodedMoments {
  struct Wide {
    alignas(64) float moment1[kMomentBlock];
    alignas(64) float moment2[kMomentBlock];
    alignas(64) std::uint32_t random[kMomentBlock];
  };

  HWY_INLINE CodedMoments(const AdamWUpdate& op, std::int64_t first_element, Wide& wide_moments)
      : codes1(codes_of(op.moment1)),
        codes2(codes_of(op.moment2)),
        first(first_element),
        block1(codes_of(op.exponents1)[first / kMomentBlock]),
        block2(codes_of(op.exponents2)[first / kMomentBlock]),
        wide(wide_moments) {}

  HWY_INLINE Vec get1(std::int64_t i) const {
    return decode_moment1_vector(block1, load_codes(codes1 + i));
  }
  HWY_INLINE Vec get2(std::int64_t i) const { return block2.decode(load_codes(codes2 + i)); }
  HWY_INLINE void set(Vec m, Vec v, WordVec random, std::int64_t i) const {
    store(m, wide.moment1 + (i - first));
    store(v, wide.moment2 + (i - first));
    hn::StoreU(random, LaneWords(), wide.random + (i - first));
  }

  std::uint8_t *codes1, *codes2;
  std::int64_t first;
  Block1 block1;
  Block2 block2;
  Wide& wide;
};

// The constants of AdamWFactors in vectors, so that the compiler has them in registers.
struct VectorFactors {
  explicit HWY_INLINE VectorFactors(const AdamWFactors& f)
      : gradient_scale(splat(f.gradient_scale)),
        one_minus_beta1(splat(f.one_minus_beta1)),
        one_minus_beta2(splat(f.one_minus_beta2)),
        unbias_1(splat(f.unbias_1)),
        unbias_2(splat(f.unbias_2)),
        epsilon(splat(f.epsilon)),
        minus_decay(splat(f.minus_decay)),
        minus_rate(splat(f.minus_rate)) {}
  Vec gradient_scale, one_minus_beta1, one_minus_beta2, unbias_1, unbias_2;
  Vec epsilon, minus_decay, minus_rate;
};

// Updates one vector of everything.
template <typename Gradient, typename Moments, typename Parameters>
HWY_INLINE void update_vector(const VectorFactors& f, const Gradient* gradient,
                              const Moments& moments, const Parameters& parameters, WordVec random,
                              std::int64_t i) {
  const Vec m_before = moments.get1(i);
  const Vec v_before = moments.get2(i);
  const Vec p_before = parameters.get(i);
  const Vec g = hn::Mul(load(gradient + i), f.gradient_scale);
  const Vec m = hn::MulAdd(f.one_minus_beta1, hn::Sub(g, m_before), m_before);
  const Vec v = hn::MulAdd(f.one_minus_beta2, hn::Sub(hn::Mul(g, g), v_before), v_before);
  const Vec mh = hn::Mul(m, f.unbias_1);
  const Vec root = hn::Sqrt(hn::Mul(v, f.unbias_2));
  const Vec d = hn::Add(root, f.epsilon);
  const Vec decayed = hn::MulAdd(f.minus_decay, p_before, p_before);
  moments.set(m, v, random, i);
  parameters.set(hn::MulAdd(f.minus_rate, hn::Div(mh, d), decayed), i);
}

// Whole steps of [begin, end); returns where they end.
template <typename Gradient, typename Parameters>
HWY_INLINE std::int64_t update_steps(const AdamWFactors& factors, const Gradient* gradient,
                                     const FloatMoments& moments, const Parameters& parameters,
                                     std::int64_t begin, std::int64_t end) {
  const VectorFactors f(factors);
  std::int64_t i = begin;
  for (; i + kStep <= end; i += kStep) {
    fetch_ahead(gradient + i);
    moments.fetch(i);
    parameters.fetch(i);
    for (std::int64_t j = i; j < i + kStep; j += kLanes) {
      update_vector(f, gradient, moments, parameters, hn::Zero(LaneWords()), j);
    }
  }
  return i;
}

// Elements that share Philox blocks: rounding_bits().
inline constexpr std::int64_t kGroup = 128;
inline constexpr std::int64_t kCounters = 16;

// Calls body(random, i) for every vector of the group that begins at `first`.
template <typename Body>
HWY_INLINE void for_each_random(const AdamWUpdate& op, std::int64_t first, const Body& body) {
  const PhiloxVector numbers(op.rounding.seed, op.rounding.stream, op.scalars->step);
  const auto counter = static_cast<std::uint64_t>((op.rounding.first_element + first) / kGroup) *
                       static_cast<std::uint64_t>(kCounters);
  for (std::int64_t part = 0; part < kCounters; part += kLanes) {
    WordVec words[4];
    numbers(counter + static_cast<std::uint64_t>(part), words);
    for (std::int64_t j = 0; j < 4; ++j) body(words[j], first + j * kCounters + part);
    for (std::int64_t j = 0; j < 4; ++j) {
      body(hn::RotateRight<16>(words[j]), first + kGroup / 2 + j * kCounters + part);
    }
  }
}

// Whole groups from `begin`, a multiple of kGroup, on; returns where they end.
template <typename Gradient, typename Parameters>
HWY_INLINE std::int64_t update_groups(const AdamWUpdate& op, const AdamWFactors& factors,
                                      const Gradient* gradient, const HalfMoments& moments,
                                      const Parameters& parameters, std::int64_t begin,
                                      std::int64_t end) {
  const VectorFactors f(factors);
  std::int64_t i = begin;
  for (; i + kGroup <= end; i += kGroup) {
    for (std::int64_t step = i; step < i + kGroup; step += kStep) {
      fetch_ahead(gradient + step);
      moments.fetch(step);
      parameters.fetch(step);
    }
    for_each_random(op, i, [&](WordVec random, std::int64_t j) TERRACE_VECTOR_BODY {
      update_vector(f, gradient, moments, parameters, random, j);
    });
  }
  return i;
}

// The largest size, as bits.
HWY_INLINE std::uint32_t largest_of_block(const float* values) {
  const LaneWords words;
  WordVec largest = hn::Zero(words);
  for (std::int64_t i = 0; i < kMomentBlock; i += kLanes) {
    const auto bits = hn::And(hn::BitCast(words, load(values + i)), hn::Set(words, 0x7fffffffU));
    largest = hn::Max(largest, bits);
  }
  return hn::GetLane(hn::MaxOfLanes(words, largest));
}

// From the new moments to their codes.
HWY_INLINE void narrow_block(const AdamWUpdate& op, const CodedMoments& moments) {
  const CodedMoments::Wide& wide = moments.wide;
  const std::uint8_t exponent1 = block_exponent(largest_of_block(wide.moment1));
  const std::uint8_t exponent2 = block_exponent(largest_of_block(wide.moment2));
  codes_of(op.exponents1)[moments.first / kMomentBlock] = exponent1;
  codes_of(op.exponents2)[moments.first / kMomentBlock] = exponent2;
  const Block1 block1(exponent1);
  const Block2 block2(exponent2);
  std::uint8_t* const codes1 = moments.codes1 + moments.first;
  std::uint8_t* const codes2 = moments.codes2 + moments.first;
  constexpr int kShift = kDroppedBits - 16;
  for (std::int64_t i = 0; i < kMomentBlock; i += kLanes) {
    const WordVec random = hn::LoadU(LaneWords(), wide.random + i);
    const auto random1 = hn::ShiftLeft<kShift>(bits_of_moment1(random));
    const auto random2 = hn::ShiftLeft<kShift>(bits_of_moment2(random));
    store_codes(encode_moment1_vector(block1, load(wide.moment1 + i), random1), codes1 + i);
    store_codes(encode_moment2_vector(block2, load(wide.moment2 + i), random2), codes2 + i);
  }
}

// Whole blocks that all decay or all do not.
template <typename Gradient, typename Parameters>
HWY_INLINE std::int64_t update_blocks(const AdamWUpdate& op, const AdamWFactors& factors,
                                      const Gradient* gradient, const Parameters& parameters,
                                      std::int64_t begin, std::int64_t end) {
  const VectorFactors f(factors);
  CodedMoments::Wide wide;
  std::int64_t first = begin;
  for (; first + kMomentBlock <= end; first += kMomentBlock) {
    const CodedMoments moments(op, first, wide);
    for (std::int64_t group = first; group < first + kMomentBlock; group += kGroup) {
      for (std::int64_t step = group; step < group + kGroup; step += kStep) {
        fetch_ahead(gradient + step);
        parameters.fetch(step);
      }
      for (std::int64_t line = group + kAheadBytes; line < group + kGroup + kAheadBytes;
           line += 64) {
        hwy::Prefetch(moments.codes1 + line);
        hwy::Prefetch(moments.codes2 + line);
      }
      for_each_random(op, group, [&](WordVec random, std::int64_t i) TERRACE_VECTOR_BODY {
        update_vector(f, gradient, moments, parameters, random, i);
      });
    }
    narrow_block(op, moments);
  }
  return first;
}

// A whole master beside a parameter of 16 bits.
template <typename Half, typename Body>
HWY_INLINE std::int64_t with_half(const AdamWUpdate& op, std::int64_t begin, const Body& body) {
  float* const master = op.master.as<float>();
  Half* const parameter = op.parameter.as<Half>();
  constexpr auto kVectorBytes = static_cast<std::uintptr_t>(kLanes) * sizeof(Half);
  if (reinterpret_cast<std::uintptr_t>(parameter + begin) % kVectorBytes != 0) {
    return body(MasterAndHalf<Half, false>{master, parameter});
  }
  const std::int64_t done = body(MasterAndHalf<Half, true>{master, parameter});
  hwy::FlushStream();
  return done;
}

// Calls body(parameters) with the form that the views have.
template <typename Body>
HWY_INLINE std::int64_t with_parameters(const AdamWUpdate& op, std::int64_t begin,
                                        const Body& body) {
  if (op.master.dtype == DType::kI16) {
    return body(SplitMaster{op.master.as<std::int16_t>(), op.parameter.as<Bf16>()});
  }
  float* const master = op.master.as<float>();
  if (op.parameter.data == op.master.data) return body(WholeMaster{master});
  if (op.parameter.dtype == DType::kF32) {
    return body(MasterAndFloat{master, op.parameter.as<float>()});
  }
  if (op.parameter.dtype == DType::kF16) return with_half<Fp16>(op, begin, body);
  return with_half<Bf16>(op, begin, body);
}

#endif  // TERRACE_NATIVE_FMA

#if TERRACE_NATIVE_FMA

// Calls body(gradient, parameters) with the gradient's type, too.
template <typename Body>
HWY_INLINE std::int64_t with_views(const AdamWUpdate& op, std::int64_t begin, const Body& body) {
  return with_parameters(op, begin, [&](const auto& parameters) TERRACE_VECTOR_BODY {
    if (op.gradient.dtype == DType::kF32) return body(op.gradient.as<const float>(), parameters);
    return body(op.gradient.as<const Bf16>(), parameters);
  });
}

std::int64_t update_float_moments(const AdamWUpdate& op, std::int64_t begin, std::int64_t end) {
  const AdamWFactors factors = adamw_factors(op, begin < op.decayed_elements);
  const FloatMoments moments = {op.moment1.as<float>(), op.moment2.as<float>()};
  return with_views(op, begin, [&](auto gradient, const auto& parameters) TERRACE_VECTOR_BODY {
    return update_steps(factors, gradient, moments, parameters, begin, end);
  });
}

std::int64_t update_half_moments(const AdamWUpdate& op, std::int64_t begin, std::int64_t end) {
  const AdamWFactors factors = adamw_factors(op, begin < op.decayed_elements);
  const HalfMoments moments = {op.moment1.as<Bf16>(), op.moment2.as<Bf16>()};
  return with_views(op, begin, [&](auto gradient, const auto& parameters) TERRACE_VECTOR_BODY {
    return update_groups(op, factors, gradient, moments, parameters, begin, end);
  });
}

// Blocks that all decay or all do not.
void update_coded_moments(const AdamWUpdate& op, std::int64_t begin, std::int64_t end) {
  const AdamWFactors factors = adamw_factors(op, begin < op.decayed_elements);
  with_views(op, begin, [&](auto gradient, const auto& parameters) TERRACE_VECTOR_BODY {
    return update_blocks(op, factors, gradient, parameters, begin, end);
  });
}

// Elements that all decay or all do not; returns how far it came.
std::int64_t update_same_decay(const AdamWUpdate& op, std::int64_t begin, std::int64_t end) {
  if (op.moment1.dtype == DType::kF32) return update_float_moments(op, begin, end);
  const std::int64_t aligned = std::min(end, (begin + kGroup - 1) / kGroup * kGroup);
  adamw_reference_range(op, begin, aligned);
  return update_half_moments(op, aligned, end);
}

#endif  // TERRACE_NATIVE_FMA

// A range that begins at a multiple of kElementBlock.
void update_range(const AdamWUpdate& op, std::int64_t begin, std::int64_t end) {
#if TERRACE_NATIVE_FMA
  if (op.moment1.dtype == DType::kU8) {
    const std::int64_t middle = std::clamp(op.decayed_elements, begin, end);
    const std::int64_t first = middle / kMomentBlock * kMomentBlock;
    const std::int64_t last = (middle + kMomentBlock - 1) / kMomentBlock * kMomentBlock;
    update_coded_moments(op, begin, first);
    adamw_reference_range(op, first, last);  // the block where the decay ends
    update_coded_moments(op, last, end);
    return;
  }
  for_each_decay_range(op, begin, end, [&](std::int64_t first, std::int64_t last) {
    adamw_reference_range(op, update_same_decay(op, first, last), last);
  });
#else
  adamw_reference_range(op, begin, end);
#endif
}

}  // namespace HWY_NAMESPACE
}  // namespace terrace
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace terrace {

HWY_EXPORT(update_range);

void adamw_cpu(const KernelContext& context, const AdamWUpdate& update) {
  check_adamw_update(update);
  const std::int64_t elements = update.gradient.elements();
  for_each_block(context, elements, kElementBlock, [&](std::int64_t begin, std::int64_t end) {
    if (update.scalars->skips != 0) return keep_state(update, begin, end);
    HWY_DYNAMIC_DISPATCH(update_range)(update, begin, end);
  });
}

}  // namespace terrace
#endif  // HWY_ONCE
