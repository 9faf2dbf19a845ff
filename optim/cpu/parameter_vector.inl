// How an update reads and writes vectors of parameters. Included once per Highway target, after
// kernels/cpu/cpu_vector.inl; hence the guard that Highway toggles instead of `#pragma once`.
#if defined(TERRACE_OPTIM_CPU_PARAMETER_VECTOR_INL) == defined(HWY_TARGET_TOGGLE)
#ifdef TERRACE_OPTIM_CPU_PARAMETER_VECTOR_INL
#undef TERRACE_OPTIM_CPU_PARAMETER_VECTOR_INL
#else
#define TERRACE_OPTIM_CPU_PARAMETER_VECTOR_INL
#endif

#include <cstdint>

#include "hwy/cache_control.h"
#include "hwy/highway.h"
#include "optim/update_rule.h"

HWY_BEFORE_NAMESPACE();
namespace terrace {
namespace HWY_NAMESPACE {

inline constexpr std::int64_t kStep = 32;  // elements: a cache line of bf16
inline constexpr std::int64_t kAheadBytes = 1024;

// The prefetch distance: how far ahead of the work memory is fetched, in elements, or kAheadBytes
// of every array.
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

// The places that parameters come from and go to, in the forms of ParameterUpdate. PastCache is for
// parameters that are only written, and aligned.

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

// Rounds as to_fp16_nearest_even() of base/half.h does.
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

// Calls body(parameters) for a whole master beside a parameter of 16 bits.
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

}  // namespace HWY_NAMESPACE
}  // namespace terrace
HWY_AFTER_NAMESPACE();

#endif  // per-target guard
