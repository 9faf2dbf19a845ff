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

// One pass over the state: every element is read and written once. The four fp32 streams are
// fetched 1 KiB ahead; they are written with ordinary stores, because a non-temporal store to a
// line that was just read is slow. The separate bf16 parameters are never read and bypass the
// cache.

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

// Where an update's range lies. Exactly one of the parameter pointers may be set; neither where the
// parameter is the master.
struct AdamWRange {
  const float* gradient;
  float *master, *moment1, *moment2;
  float* parameter;
  Bf16* half_parameter;
  std::int64_t elements;
};

inline AdamWRange range_of(const AdamWUpdate& op, std::int64_t begin, std::int64_t end) {
  AdamWRange range = {};
  range.gradient = op.gradient.as<const float>() + begin;
  range.master = op.master.as<float>() + begin;
  range.moment1 = op.moment1.as<float>() + begin;
  range.moment2 = op.moment2.as<float>() + begin;
  if (op.parameter.dtype == DType::kBF16) {
    range.half_parameter = op.parameter.as<Bf16>() + begin;
  } else if (op.parameter.data != op.master.data) {
    range.parameter = op.parameter.as<float>() + begin;
  }
  range.elements = end - begin;
  return range;
}

inline void update_scalar(const AdamWFactors& factors, const AdamWRange& range,
                          std::int64_t begin) {
  for (std::int64_t i = begin; i < range.elements; ++i) {
    const AdamWElement next = adamw_element(factors, range.gradient[i],
                                            {range.master[i], range.moment1[i], range.moment2[i]});
    range.master[i] = next.p;
    range.moment1[i] = next.m;
    range.moment2[i] = next.v;
    if (range.parameter != nullptr) range.parameter[i] = next.p;
    if (range.half_parameter != nullptr) range.half_parameter[i] = to_bf16_ties_away(next.p);
  }
}

#if TERRACE_NATIVE_FMA

inline constexpr std::int64_t kStep = 32;            // elements: a cache line of bf16
inline constexpr std::int64_t kPrefetchAhead = 256;  // elements: 1 KiB of fp32

HWY_INLINE void fetch_ahead(const float* stream) {
  for (std::int64_t line = 0; line < kStep; line += 16) {
    hwy::Prefetch(stream + kPrefetchAhead + line);
  }
}

// Updates the state of one vector and returns the new parameters.
HWY_INLINE Vec update_vector(const AdamWFactors& factors, const AdamWRange& range, std::int64_t i) {
  const Vec m_before = load(range.moment1 + i);
  const Vec v_before = load(range.moment2 + i);
  const Vec p_before = load(range.master + i);
  const Vec g = hn::Mul(load(range.gradient + i), splat(factors.gradient_scale));
  const Vec m = hn::MulAdd(splat(factors.one_minus_beta1), hn::Sub(g, m_before), m_before);
  const Vec v =
      hn::MulAdd(splat(factors.one_minus_beta2), hn::Sub(hn::Mul(g, g), v_before), v_before);
  const Vec mh = hn::Div(m, splat(factors.bias_correction_1));
  const Vec root = hn::Sqrt(hn::Div(v, splat(factors.bias_correction_2)));
  const Vec d = hn::Add(root, splat(factors.epsilon));
  const Vec decayed = hn::MulAdd(splat(factors.minus_decay), p_before, p_before);
  const Vec p = hn::MulAdd(splat(factors.minus_rate), hn::Div(mh, d), decayed);
  store(m, range.moment1 + i);
  store(v, range.moment2 + i);
  store(p, range.master + i);
  return p;
}

HWY_INLINE void stream_halves(WordVec words, Bf16* target) {
  hn::Stream(hn::TruncateTo(LaneHalves(), words), LaneHalves(),
             reinterpret_cast<std::uint16_t*>(target));
}

// Whole steps of the range; returns how many elements they are.
template <typename StoreParameter>
HWY_INLINE std::int64_t update_steps(const AdamWFactors& factors, const AdamWRange& range,
                                     const StoreParameter& store_parameter) {
  std::int64_t i = 0;
  for (; i + kStep <= range.elements; i += kStep) {
    fetch_ahead(range.gradient + i);
    fetch_ahead(range.master + i);
    fetch_ahead(range.moment1 + i);
    fetch_ahead(range.moment2 + i);
    for (std::int64_t j = i; j < i + kStep; j += kLanes) {
      store_parameter(update_vector(factors, range, j), j);
    }
  }
  return i;
}

std::int64_t update_whole_steps(const AdamWFactors& factors, const AdamWRange& range) {
  float* const parameter = range.parameter;
  Bf16* const half_parameter = range.half_parameter;
  if (parameter != nullptr) {
    return update_steps(factors, range, [=](Vec p, std::int64_t i) TERRACE_VECTOR_BODY {
      store(p, parameter + i);
    });
  }
  if (half_parameter == nullptr) {
    return update_steps(factors, range, [](Vec, std::int64_t) TERRACE_VECTOR_BODY {});
  }
  constexpr auto kVectorBytes = static_cast<std::uintptr_t>(kLanes) * sizeof(Bf16);
  if (reinterpret_cast<std::uintptr_t>(half_parameter) % kVectorBytes != 0) {
    return update_steps(factors, range, [=](Vec p, std::int64_t i) TERRACE_VECTOR_BODY {
      store_halves(bf16_words_ties_away(p), half_parameter + i);
    });
  }
  const std::int64_t done =
      update_steps(factors, range, [=](Vec p, std::int64_t i) TERRACE_VECTOR_BODY {
        stream_halves(bf16_words_ties_away(p), half_parameter + i);
      });
  hwy::FlushStream();
  return done;
}

#endif  // TERRACE_NATIVE_FMA

void update_range(const AdamWUpdate& op, std::int64_t begin, std::int64_t end) {
  const AdamWFactors factors = adamw_factors(op.options, *op.scalars);
  const AdamWRange range = range_of(op, begin, end);
#if TERRACE_NATIVE_FMA
  update_scalar(factors, range, update_whole_steps(factors, range));
#else
  update_scalar(factors, range, 0);
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
    HWY_DYNAMIC_DISPATCH(update_range)(update, begin, end);
  });
}

}  // namespace terrace
#endif  // HWY_ONCE
