// The functions of optim/moment_code.h for vectors, with the same bits. Included once per Highway
// target, after kernels/cpu/cpu_vector.inl; hence the guard that Highway toggles instead of
// `#pragma once`.
#if defined(TERRACE_OPTIM_CPU_MOMENT_VECTOR_INL) == defined(HWY_TARGET_TOGGLE)
#ifdef TERRACE_OPTIM_CPU_MOMENT_VECTOR_INL
#undef TERRACE_OPTIM_CPU_MOMENT_VECTOR_INL
#else
#define TERRACE_OPTIM_CPU_MOMENT_VECTOR_INL
#endif

#include <cstddef>
#include <cstdint>

#include "hwy/highway.h"
#include "optim/moment_code.h"

HWY_BEFORE_NAMESPACE();
namespace terrace {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

template <std::size_t Slot>
HWY_INLINE WordVec half_bits_of_slot(WordVec random) {
  if constexpr (Slot > 0) random = hn::ShiftRight<8>(random);
  return hn::And(random, hn::Set(LaneWords(), 0xffffU));
}
template <std::size_t Slot>
HWY_INLINE WordVec dropped_bits_of_slot(WordVec random) {
  if constexpr (Slot == 0) return hn::ShiftRight<32 - kDroppedBits>(random);
  return hn::And(random, hn::Set(LaneWords(), (1U << kDroppedBits) - 1));
}

HWY_INLINE WordVec bf16_words_stochastic(Vec value, WordVec random) {
  return upper_or_nan(value, hn::Add(hn::BitCast(LaneWords(), value), random));
}

HWY_INLINE void store_codes(WordVec codes, std::uint8_t* target) {
  const hn::Rebind<std::uint8_t, Lanes> bytes;
  hn::StoreU(hn::TruncateTo(bytes, codes), bytes, target);
}

// The codes of one block. The hardware reads a code as an fp16, whose exponent and fraction are
// wider; this holds for numbers at the lowest exponent, too.
class BlockCodes {
 public:
  template <bool HasSign>
  static HWY_INLINE BlockCodes of(std::uint8_t exponent) {
    constexpr std::uint32_t kTop = kTopExponents[HasSign ? 0 : 1];
    BlockCodes block;
    block.normal_bits_ = (static_cast<std::uint32_t>(exponent) - kTop + 1) << 23;
    block.scale_bits_ = (static_cast<std::uint32_t>(exponent) - kTop + kFp16Bias) << 23;
    return block;
  }

  template <bool HasSign>
  HWY_INLINE Vec load(const std::uint8_t* codes) const {
    const Shorts shorts;
    if constexpr (HasSign) {
      const hn::Rebind<std::int8_t, Lanes> bytes;
      const auto code =
          hn::PromoteTo(shorts, hn::LoadU(bytes, reinterpret_cast<const std::int8_t*>(codes)));
      constexpr auto kBits = static_cast<std::int16_t>(0x8000 | (0x7f << kShiftToFp16));
      return decode(hn::And(hn::ShiftLeft<kShiftToFp16>(code), hn::Set(shorts, kBits)));
    } else {
      const hn::Rebind<std::uint8_t, Lanes> bytes;
      const hn::Rebind<std::uint16_t, Lanes> halves;
      const auto code = hn::PromoteTo(halves, hn::LoadU(bytes, codes));
      return decode(hn::BitCast(shorts, hn::ShiftLeft<kShiftToFp16>(code)));
    }
  }

  // `dropped` comes from dropped_bits_of_slot().
  template <bool HasSign>
  HWY_INLINE void store(Vec value, WordVec dropped, std::uint8_t* target) const {
    const LaneWords words;
    const auto bits = hn::BitCast(words, value);
    if constexpr (HasSign) {
      const auto code = encode(hn::And(bits, hn::Set(words, 0x7fffffffU)), dropped);
      const auto size = hn::Min(code, hn::Set(words, kSignOfCode - 1));
      const auto sign = hn::And(hn::ShiftRight<24>(bits), hn::Set(words, kSignOfCode));
      store_codes(hn::Or(size, sign), target);
    } else {
      const auto code = hn::Min(encode(bits, dropped), hn::Set(words, 255U));
      store_codes(hn::Max(code, hn::Min(bits, hn::Set(words, 1U))), target);
    }
  }

 private:
  using Shorts = hn::Rebind<std::int16_t, Lanes>;

  HWY_INLINE Vec decode(hn::Vec<Shorts> code_in_place) const {
    const hn::Rebind<hwy::float16_t, Lanes> fp16;
    const auto scale = hn::BitCast(Lanes(), hn::Set(LaneWords(), scale_bits_));
    return hn::Mul(hn::PromoteTo(Lanes(), hn::BitCast(fp16, code_in_place)), scale);
  }

  HWY_INLINE WordVec encode(WordVec size_bits, WordVec random) const {
    const LaneWords words;
    const auto normal = hn::Set(words, normal_bits_);
    const auto step = hn::Set(words, 1U << 23);
    const auto is_small = hn::Lt(size_bits, normal);
    const auto raised = hn::Add(hn::BitCast(Lanes(), size_bits), hn::BitCast(Lanes(), normal));
    const auto placed = hn::IfThenElse(is_small, hn::BitCast(words, raised), size_bits);
    const auto offset = hn::Sub(random, hn::Sub(normal, step));
    const auto sum = hn::Add(placed, offset);
    return hn::ShiftRight<kDroppedBits>(hn::IfThenElse(is_small, hn::Sub(sum, step), sum));
  }

  std::uint32_t normal_bits_, scale_bits_;
};

}  // namespace HWY_NAMESPACE
}  // namespace terrace
HWY_AFTER_NAMESPACE();

#endif  // per-target guard
