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

template <bool kStream>
struct MasterAndHalf {
  float* master;
  Bf16* parameter;
  HWY_INLINE Vec get(std::int64_t i) const { return load(master + i); }
  HWY_INLINE void set(Vec p, std::int64_t i) const {
    store(p, master + i);
    const WordVec words = bf16_words_ties_away(p);
    if constexpr (kStream) {
      hn::Stream(hn::TruncateTo(LaneHalves(), words), LaneHalves(),
                 reinterpret_cast<std::uint16_t*>(parameter + i));
    } else {
      store_halves(words, parameter + i);
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

struct Moments {
  float *moment1, *moment2;
};

// Updates one vector of everything.
template <typename Parameters>
HWY_INLINE void update_vector(const AdamWFactors& factors, const float* gradient,
                              const Moments& moments, const Parameters& parameters,
                              std::int64_t i) {
  const Vec m_before = load(moments.moment1 + i);
  const Vec v_before = load(moments.moment2 + i);
  const Vec p_before = parameters.get(i);
  const Vec g = hn::Mul(load(gradient + i), splat(factors.gradient_scale));
  const Vec m = hn::MulAdd(splat(factors.one_minus_beta1), hn::Sub(g, m_before), m_before);
  const Vec v =
      hn::MulAdd(splat(factors.one_minus_beta2), hn::Sub(hn::Mul(g, g), v_before), v_before);
  const Vec mh = hn::Div(m, splat(factors.bias_correction_1));
  const Vec root = hn::Sqrt(hn::Div(v, splat(factors.bias_correction_2)));
  const Vec d = hn::Add(root, splat(factors.epsilon));
  const Vec decayed = hn::MulAdd(splat(factors.minus_decay), p_before, p_before);
  const Vec p = hn::MulAdd(splat(factors.minus_rate), hn::Div(mh, d), decayed);
  store(m, moments.moment1 + i);
  store(v, moments.moment2 + i);
  parameters.set(p, i);
}

// Whole steps of [begin, end); returns where they end.
template <typename Parameters>
HWY_INLINE std::int64_t update_steps(const AdamWFactors& factors, const float* gradient,
                                     const Moments& moments, const Parameters& parameters,
                                     std::int64_t begin, std::int64_t end) {
  std::int64_t i = begin;
  for (; i + kStep <= end; i += kStep) {
    fetch_ahead(gradient + i);
    fetch_ahead(moments.moment1 + i);
    fetch_ahead(moments.moment2 + i);
    parameters.fetch(i);
    for (std::int64_t j = i; j < i + kStep; j += kLanes) {
      update_vector(factors, gradient, moments, parameters, j);
    }
  }
  return i;
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
  Bf16* const parameter = op.parameter.as<Bf16>();
  constexpr auto kVectorBytes = static_cast<std::uintptr_t>(kLanes) * sizeof(Bf16);
  if (reinterpret_cast<std::uintptr_t>(parameter + begin) % kVectorBytes != 0) {
    return body(MasterAndHalf<false>{master, parameter});
  }
  const std::int64_t done = body(MasterAndHalf<true>{master, parameter});
  hwy::FlushStream();
  return done;
}

#endif  // TERRACE_NATIVE_FMA

// Elements that all decay or all do not.
void update_range(const AdamWUpdate& op, std::int64_t begin, std::int64_t end) {
#if TERRACE_NATIVE_FMA
  const AdamWFactors factors = adamw_factors(op.options, *op.scalars, begin < op.decayed_elements);
  const float* const gradient = op.gradient.as<const float>();
  const Moments moments = {op.moment1.as<float>(), op.moment2.as<float>()};
  begin = with_parameters(op, begin, [&](const auto& parameters) TERRACE_VECTOR_BODY {
    return update_steps(factors, gradient, moments, parameters, begin, end);
  });
#endif
  adamw_reference_range(op, begin, end);
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
  for_each_block(context, elements, kElementBlock, [&](std::int64_t first, std::int64_t last) {
    for_each_decay_range(update, first, last, [&](std::int64_t begin, std::int64_t end) {
      HWY_DYNAMIC_DISPATCH(update_range)(update, begin, end);
    });
  });
}

}  // namespace terrace
#endif  // HWY_ONCE
