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

// One pass over the state: every element is read and written once. All that is read is fetched
// ahead and written with ordinary stores, because a non-temporal store to a line that was just
// read is slow. Parameters beside a whole master are never read and bypass the cache.

// The sequence needs a fused multiply-add in one rounding. Where the instruction set has none, the
// scalar definition runs, with std::fma.
#undef TERRACE_NATIVE_FMA
#if (HWY_ARCH_X86 && HWY_TARGET <= HWY_AVX2) || HWY_TARGET == HWY_PPC8 || \
    (HWY_TARGET == HWY_NEON && HWY_ARCH_ARM_A64)
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

// How far ahead of the work memory is fetched: so many elements, or kAheadBytes of every array.
class Ahead {
 public:
  explicit HWY_INLINE Ahead(const ParameterUpdate& op) : elements_(op.fetch_elements) {}
  template <typename T>
  HWY_INLINE std::int64_t of() const {
    return elements_ != 0 ? elements_ : kAheadBytes / static_cast<std::int64_t>(sizeof(T));
  }

 private:
  std::int64_t elements_;
};

// Fetches the lines of one step, ahead.
template <typename T>
HWY_INLINE void fetch_ahead(const T* step, Ahead ahead) {
  constexpr std::int64_t kLine = 64 / static_cast<std::int64_t>(sizeof(T));
  const T* const first = step + ahead.of<T>();
  for (std::int64_t line = 0; line < kStep; line += kLine) hwy::Prefetch(first + line);
}

// Where parameters come from and go to, in the three forms of optim/adamw.h. `stream` is for
// parameters that are written only and aligned.

struct WholeMaster {
  float* master;
  HWY_INLINE Vec get(std::int64_t i) const { return load(master + i); }
  HWY_INLINE void set(Vec p, std::int64_t i) const { store(p, master + i); }
  HWY_INLINE void fetch(std::int64_t i, Ahead ahead) const { fetch_ahead(master + i, ahead); }
};

struct MasterAndFloat {
  float* master;
  float* parameter;
  HWY_INLINE Vec get(std::int64_t i) const { return load(master + i); }
  HWY_INLINE void set(Vec p, std::int64_t i) const {
    store(p, master + i);
    store(p, parameter + i);
  }
  HWY_INLINE void fetch(std::int64_t i, Ahead ahead) const { fetch_ahead(master + i, ahead); }
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
  HWY_INLINE void fetch(std::int64_t i, Ahead ahead) const { fetch_ahead(master + i, ahead); }
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
  HWY_INLINE void fetch(std::int64_t i, Ahead ahead) const {
    fetch_ahead(remainder + i, ahead);
    fetch_ahead(parameter + i, ahead);
  }
};

// Where moments come from and go to. `random` is what rounds them: moment_code.h.

struct FloatMoments {
  float *moment1, *moment2;
  HWY_INLINE Vec get1(std::int64_t i) const { return load(moment1 + i); }
  HWY_INLINE Vec get2(std::int64_t i) const { return load(moment2 + i); }
  HWY_INLINE void set(Vec m, Vec v, WordVec /*random*/, std::int64_t i) const {
    store(m, moment1 + i);
    store(v, moment2 + i);
  }
  HWY_INLINE void fetch(std::int64_t i, Ahead ahead) const {
    fetch_ahead(moment1 + i, ahead);
    fetch_ahead(moment2 + i, ahead);
  }
};

struct HalfMoments {
  Bf16 *moment1, *moment2;
  HWY_INLINE Vec get1(std::int64_t i) const { return load(moment1 + i); }
  HWY_INLINE Vec get2(std::int64_t i) const { return load(moment2 + i); }
  HWY_INLINE void set(Vec m, Vec v, WordVec random, std::int64_t i) const {
    store_halves(bf16_words_stochastic(m, half_bits_of_moment1(random)), moment1 + i);
    store_halves(bf16_words_stochastic(v, half_bits_of_moment2(random)), moment2 + i);
  }
  HWY_INLINE void fetch(std::int64_t i, Ahead ahead) const {
    fetch_ahead(moment1 + i, ahead);
    fetch_ahead(moment2 + i, ahead);
  }
};

// The new moments of a block, until the largest are known: they wait in the cache, with the random
// numbers that will round them.
struct NewMoments {
  alignas(64) float moment1[kMomentBlock];
  alignas(64) float moment2[kMomentBlock];
  alignas(64) std::uint32_t random[kMomentBlock];
  std::int64_t first;
  std::uint8_t exponent1, exponent2;
};

// One block of 8-bit moments, read from their codes.
class CodedMoments {
 public:
  HWY_INLINE CodedMoments(const ParameterUpdate& op, std::int64_t first, NewMoments& next)
      : codes1_(codes_of(op.slots[0])),
        codes2_(codes_of(op.slots[1])),
        block1_(codes_of(op.exponents[0])[first / kMomentBlock]),
        block2_(codes_of(op.exponents[1])[first / kMomentBlock]),
        largest1_(hn::Zero(LaneWords())),
        largest2_(hn::Zero(LaneWords())),
        first_(first),
        next_(next) {}

  HWY_INLINE Vec get1(std::int64_t i) const { return block1_.load(codes1_ + i); }
  HWY_INLINE Vec get2(std::int64_t i) const { return block2_.load(codes2_ + i); }
  HWY_INLINE void set(Vec m, Vec v, WordVec random, std::int64_t i) {
    const LaneWords words;
    const auto size1 = hn::And(hn::BitCast(words, m), hn::Set(words, 0x7fffffffU));
    largest1_ = hn::Max(largest1_, size1);
    largest2_ = hn::Max(largest2_, hn::BitCast(words, v));
    store(m, next_.moment1 + (i - first_));
    store(v, next_.moment2 + (i - first_));
    hn::StoreU(random, words, next_.random + (i - first_));
  }
  // After all of the block are set.
  HWY_INLINE void finish() {
    const LaneWords words;
    next_.first = first_;
    next_.exponent1 = block_exponent(hn::GetLane(hn::MaxOfLanes(words, largest1_)));
    const std::uint32_t largest2 = hn::GetLane(hn::MaxOfLanes(words, largest2_));
    next_.exponent2 = block_exponent(largest2 & 0x7fffffffU);  // NaN alone may have a sign
  }

 private:
  const std::uint8_t *codes1_, *codes2_;
  Block1 block1_;
  Block2 block2_;
  WordVec largest1_, largest2_;
  std::int64_t first_;
  NewMoments& next_;
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

// What every form of the moments has beside it.
template <typename Gradient, typename Parameters>
struct UpdatedViews {
  const Gradient* gradient;
  Parameters parameters;
};

struct ElementRange {
  std::int64_t begin, end;
};

// Updates one vector of everything.
template <typename Views, typename Moments>
HWY_INLINE void update_vector(const VectorFactors& f, const Views& views, Moments& moments,
                              WordVec random, std::int64_t i) {
  const auto& [gradient, parameters] = views;
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

// Whole steps of a range; returns where they end.
template <typename Views>
HWY_NOINLINE std::int64_t update_steps(const ParameterUpdate& op, const AdamWFactors& factors,
                                       const Views& given, const FloatMoments& moments,
                                       const ElementRange& range) {
  const VectorFactors f(factors);
  const Ahead ahead(op);
  const Views views = given;
  std::int64_t i = range.begin;
  for (; i + kStep <= range.end; i += kStep) {
    fetch_ahead(views.gradient + i, ahead);
    moments.fetch(i, ahead);
    views.parameters.fetch(i, ahead);
    for (std::int64_t j = i; j < i + kStep; j += kLanes) {
      update_vector(f, views, moments, hn::Zero(LaneWords()), j);
    }
  }
  return i;
}

// The Philox blocks that a group of elements shares: rounding_bits(). Their four words serve a row
// of elements, and turned by a byte the next.
inline constexpr std::int64_t kCounters = 16;
inline constexpr std::int64_t kRow = 4 * kCounters;

HWY_INLINE PhiloxVector numbers_of(const ParameterUpdate& op) {
  return {op.rounding.seed, op.rounding.stream, op.scalars->step};
}

// Calls body(random, i) for every vector of the group that begins at `first`, and fetch(i) in front
// of each row: what a whole group fetches at once would not find room on its way from memory.
template <typename Fetch, typename Body>
HWY_INLINE void for_each_random(const ParameterUpdate& op, const PhiloxVector& numbers,
                                std::int64_t first, const Fetch& fetch, const Body& body) {
  const auto counter =
      static_cast<std::uint64_t>((op.rounding.first_element + first) / kRoundingGroup * kCounters);
  WordVec row[4][kCounters / kLanes];
  for (std::int64_t part = 0; part < kCounters / kLanes; ++part) {
    WordVec words[4];
    numbers(counter + static_cast<std::uint64_t>(part * kLanes), words);
    for (int word = 0; word < 4; ++word) row[word][part] = words[word];
  }
  for (std::int64_t i = first; i < first + kRoundingGroup;) {
    fetch(i);
    for (auto& parts : row) {
      for (WordVec& random : parts) {
        body(random, i);
        random = hn::RotateRight<8>(random);
        i += kLanes;
      }
    }
  }
}

// Whole groups of a range that begins at a multiple of kRoundingGroup; returns where they end.
template <typename Views>
HWY_NOINLINE std::int64_t update_groups(const ParameterUpdate& op, const AdamWFactors& factors,
                                        const Views& given, const HalfMoments& moments,
                                        const ElementRange& range) {
  const VectorFactors f(factors);
  const PhiloxVector numbers = numbers_of(op);
  const Ahead ahead(op);
  const Views views = given;
  std::int64_t i = range.begin;
  for (; i + kRoundingGroup <= range.end; i += kRoundingGroup) {
    const auto fetch = [&](std::int64_t j) TERRACE_VECTOR_BODY {
      for (std::int64_t step = j; step < j + kRow; step += kStep) {
        fetch_ahead(views.gradient + step, ahead);
        moments.fetch(step, ahead);
        views.parameters.fetch(step, ahead);
      }
    };
    for_each_random(op, numbers, i, fetch, [&](WordVec random, std::int64_t j) TERRACE_VECTOR_BODY {
      update_vector(f, views, moments, random, j);
    });
  }
  return i;
}

// From new moments to their codes.
HWY_INLINE void narrow_block(const ParameterUpdate& op, const NewMoments& next) {
  codes_of(op.exponents[0])[next.first / kMomentBlock] = next.exponent1;
  codes_of(op.exponents[1])[next.first / kMomentBlock] = next.exponent2;
  const Block1 block1(next.exponent1);
  const Block2 block2(next.exponent2);
  std::uint8_t* const codes1 = codes_of(op.slots[0]) + next.first;
  std::uint8_t* const codes2 = codes_of(op.slots[1]) + next.first;
  for (std::int64_t i = 0; i < kMomentBlock; i += kLanes) {
    const WordVec random = hn::LoadU(LaneWords(), next.random + i);
    block1.store(load(next.moment1 + i), random, codes1 + i);
    block2.store(load(next.moment2 + i), random, codes2 + i);
  }
}

// Whole blocks that all decay or all do not. A block's new moments become codes after the update of
// the next: its exponents, which come last, hold nothing up.
template <typename Views>
HWY_NOINLINE std::int64_t update_blocks(const ParameterUpdate& op, const AdamWFactors& factors,
                                        const Views& given, const ElementRange& range) {
  static_assert(kMomentBlock == kRoundingGroup);
  const VectorFactors f(factors);
  const PhiloxVector numbers = numbers_of(op);
  const Ahead ahead(op);
  const Views views = given;
  NewMoments waiting[2];
  std::int64_t first = range.begin;
  std::size_t now = 0;
  for (; first + kMomentBlock <= range.end; first += kMomentBlock, now = 1 - now) {
    const auto fetch = [&](std::int64_t i) TERRACE_VECTOR_BODY {
      for (std::int64_t step = i; step < i + kRow; step += kStep) {
        fetch_ahead(views.gradient + step, ahead);
        views.parameters.fetch(step, ahead);
      }
      hwy::Prefetch(codes_of(op.slots[0]) + i + ahead.of<std::uint8_t>());
      hwy::Prefetch(codes_of(op.slots[1]) + i + ahead.of<std::uint8_t>());
    };
    CodedMoments moments(op, first, waiting[now]);
    for_each_random(op, numbers, first, fetch,
                    [&](WordVec random, std::int64_t i)
                        TERRACE_VECTOR_BODY { update_vector(f, views, moments, random, i); });
    if (first > range.begin) narrow_block(op, waiting[1 - now]);
    moments.finish();
  }
  if (first > range.begin) narrow_block(op, waiting[1 - now]);
  return first;
}

// A whole master beside a parameter of 16 bits.
template <typename Half, typename Body>
HWY_INLINE std::int64_t with_half(const ParameterUpdate& op, std::int64_t begin, const Body& body) {
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
HWY_INLINE std::int64_t with_parameters(const ParameterUpdate& op, std::int64_t begin,
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

// Calls body(views) with the gradient's type, too.
template <typename Body>
HWY_INLINE std::int64_t with_views(const ParameterUpdate& op, std::int64_t begin,
                                   const Body& body) {
  return with_parameters(op, begin, [&](const auto& parameters) TERRACE_VECTOR_BODY {
    using Parameters = std::remove_cvref_t<decltype(parameters)>;
    if (op.gradient.dtype == DType::kF32) {
      return body(UpdatedViews<float, Parameters>{op.gradient.as<const float>(), parameters});
    }
    return body(UpdatedViews<Bf16, Parameters>{op.gradient.as<const Bf16>(), parameters});
  });
}

std::int64_t update_float_moments(const ParameterUpdate& op, std::int64_t begin, std::int64_t end) {
  const AdamWFactors factors = adamw_factors(op, begin < op.decayed_elements);
  const FloatMoments moments = {op.slots[0].as<float>(), op.slots[1].as<float>()};
  return with_views(op, begin, [&](const auto& views) TERRACE_VECTOR_BODY {
    return update_steps(op, factors, views, moments, {begin, end});
  });
}

std::int64_t update_half_moments(const ParameterUpdate& op, std::int64_t begin, std::int64_t end) {
  const AdamWFactors factors = adamw_factors(op, begin < op.decayed_elements);
  const HalfMoments moments = {op.slots[0].as<Bf16>(), op.slots[1].as<Bf16>()};
  return with_views(op, begin, [&](const auto& views) TERRACE_VECTOR_BODY {
    return update_groups(op, factors, views, moments, {begin, end});
  });
}

// Blocks that all decay or all do not.
void update_coded_moments(const ParameterUpdate& op, std::int64_t begin, std::int64_t end) {
  const AdamWFactors factors = adamw_factors(op, begin < op.decayed_elements);
  with_views(op, begin, [&](const auto& views) TERRACE_VECTOR_BODY {
    return update_blocks(op, factors, views, {begin, end});
  });
}

// Elements that all decay or all do not; returns how far it came.
std::int64_t update_same_decay(const ParameterUpdate& op, std::int64_t begin, std::int64_t end) {
  if (op.slots[0].dtype == DType::kF32) return update_float_moments(op, begin, end);
  const std::int64_t aligned =
      std::min(end, (begin + kRoundingGroup - 1) / kRoundingGroup * kRoundingGroup);
  adamw_reference_range(op, begin, aligned);
  return update_half_moments(op, aligned, end);
}

#endif  // TERRACE_NATIVE_FMA

void update_range(const ParameterUpdate& op, std::int64_t begin, std::int64_t end) {
#if TERRACE_NATIVE_FMA
  if (op.slots[0].dtype == DType::kU8) {
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

void adamw_cpu(const KernelContext& context, const ParameterUpdate& update) {
  check_adamw_update(update);
  const std::int64_t elements = update.gradient.elements();
  for_each_block(context, elements, kElementBlock, [&](std::int64_t begin, std::int64_t end) {
    adamw_cpu_range(update, begin, end);
  });
}

void adamw_cpu_range(const ParameterUpdate& update, std::int64_t begin, std::int64_t end) {
  TERRACE_CHECK_EQ(begin % kMomentBlock, 0);
  if (update.scalars->skips != 0) return keep_state(update, begin, end);
  HWY_DYNAMIC_DISPATCH(update_range)(update, begin, end);
}

}  // namespace terrace
#endif  // HWY_ONCE
