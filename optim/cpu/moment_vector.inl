// Vectors of optim/moment_code.h: the same bits. Included once per Highway target, behind
// kernels/cpu/cpu_vector.inl; hence no `#pragma once` but the guard that Highway toggles.
#if defined(TERRACE_OPTIM_CPU_MOMENT_VECTOR_INL) == defined(HWY_TARGET_TOGGLE)
#ifdef TERRACE_OPTIM_CPU_MOMENT_VECTOR_INL
#undef TERRACE_OPTIM_CPU_MOMENT_VECTOR_INL
#else
#define TERRACE_OPTIM_CPU_MOMENT_VECTOR_INL
#endif

#include <cstdint>

#include "hwy/highway.h"
#include "optim/moment_code.h"

HWY_BEFORE_NAMESPACE();
namespace terrace {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

// Philox4x32-10 of kLanes neighbouring counters. The lanes of each word are in two vectors, of even
// and of odd counters, each in the lower half of 64 bits: where the products are.
class PhiloxVector {
 public:
  PhiloxVector(std::uint64_t seed, std::uint32_t stream, std::uint32_t step)
      : seed_(seed), stream_(stream), step_(step) {}

  // words[j] lane i: word j of counter first + i. The counters have the same upper 32 bits.
  HWY_INLINE void operator()(std::uint64_t first, WordVec words[4]) const {
    Quad even = start(first, 0);
    Quad odd = start(first, 1);
    auto k0 = static_cast<std::uint32_t>(seed_);
    auto k1 = static_cast<std::uint32_t>(seed_ >> 32);
    for (int round = 0; round < 10; ++round) {
      const Wide key0 = hn::Set(WideLanes(), std::uint64_t{k0});
      const Wide key1 = hn::Set(WideLanes(), std::uint64_t{k1});
      even = one_round(even, key0, key1);
      odd = one_round(odd, key0, key1);
      k0 += 0x9E3779B9U;
      k1 += 0xBB67AE85U;
    }
    words[0] = join_lanes(even.x0, odd.x0);
    words[1] = join_lanes(even.x1, odd.x1);
    words[2] = join_lanes(even.x2, odd.x2);
    words[3] = join_lanes(even.x3, odd.x3);
  }

 private:
  using WideLanes = hn::Repartition<std::uint64_t, LaneWords>;
  using Wide = hn::Vec<WideLanes>;
  struct Quad {
    Wide x0, x1, x2, x3;  // the upper halves are of no account
  };

  HWY_INLINE Quad start(std::uint64_t first, std::uint64_t which) const {
    const WideLanes wide;
    const Wide index = hn::Add(hn::Set(wide, (first & 0xffffffffU) + which),
                               hn::ShiftLeft<1>(hn::Iota(wide, 0)));
    return {index, hn::Set(wide, first >> 32), hn::Set(wide, std::uint64_t{stream_}),
            hn::Set(wide, std::uint64_t{step_})};
  }

  static HWY_INLINE Wide product(Wide x, std::uint32_t factor) {
    return hn::MulEven(hn::BitCast(LaneWords(), x), hn::Set(LaneWords(), factor));
  }

  static HWY_INLINE Quad one_round(const Quad& x, Wide key0, Wide key1) {
    const Wide p0 = product(x.x0, 0xD2511F53U);
    const Wide p1 = product(x.x2, 0xCD9E8D57U);
    return {hn::Xor3(hn::ShiftRight<32>(p1), x.x1, key0), p1,
            hn::Xor3(hn::ShiftRight<32>(p0), x.x3, key1), p0};
  }

  static HWY_INLINE WordVec join_lanes(Wide even, Wide odd) {
    return hn::OddEven(hn::BitCast(LaneWords(), hn::ShiftLeft<32>(odd)),
                       hn::BitCast(LaneWords(), even));
  }

  std::uint64_t seed_;
  std::uint32_t stream_, step_;
};

HWY_INLINE WordVec bits_of_moment1(WordVec random) {
  return hn::And(random, hn::Set(LaneWords(), 0xffffU));
}
HWY_INLINE WordVec bits_of_moment2(WordVec random) {
  return hn::And(hn::ShiftRight<8>(random), hn::Set(LaneWords(), 0xffffU));
}

HWY_INLINE WordVec bf16_words_stochastic(Vec value, WordVec random) {
  const auto sum = hn::Add(hn::BitCast(LaneWords(), value), random);
  return keep_nan(value, hn::ShiftRight<16>(sum));
}

using LaneBytes = hn::Rebind<std::uint8_t, Lanes>;

HWY_INLINE WordVec load_codes(const std::uint8_t* codes) {
  return hn::PromoteTo(LaneWords(), hn::LoadU(LaneBytes(), codes));
}

HWY_INLINE void store_codes(WordVec codes, std::uint8_t* target) {
  hn::StoreU(hn::TruncateTo(LaneBytes(), codes), LaneBytes(), target);
}

// The numbers of one block's exponent that every lane needs.
template <std::uint32_t Top>
struct BlockVector {
  explicit HWY_INLINE BlockVector(std::uint8_t exponent)
      : normal_bits((static_cast<std::uint32_t>(exponent) - Top + 1) << 23) {}

  HWY_INLINE Vec decode(WordVec code) const {
    const LaneWords words;
    const auto normal = hn::Set(words, normal_bits);
    const auto is_small = hn::Lt(code, hn::Set(words, 1U << kFractionBits));
    const auto base = hn::IfThenElse(is_small, normal, hn::Set(words, normal_bits - (1U << 23)));
    const auto placed = hn::BitCast(Lanes(), hn::Add(hn::ShiftLeft<kDroppedBits>(code), base));
    const auto shift = hn::IfThenElseZero(is_small, normal);
    return hn::Sub(placed, hn::BitCast(Lanes(), shift));
  }

  HWY_INLINE WordVec encode(WordVec size_bits, WordVec random) const {
    const LaneWords words;
    const auto normal = hn::Set(words, normal_bits);
    const auto is_small = hn::Lt(size_bits, normal);
    const auto shift = hn::BitCast(Lanes(), hn::IfThenElseZero(is_small, normal));
    const auto placed = hn::BitCast(words, hn::Add(hn::BitCast(Lanes(), size_bits), shift));
    const auto base = hn::IfThenElse(is_small, normal, hn::Set(words, normal_bits - (1U << 23)));
    constexpr std::uint32_t kMost = (Top + 1) * (1U << kFractionBits) - 1;
    const auto code = hn::ShiftRight<kDroppedBits>(hn::Add(hn::Sub(placed, base), random));
    return hn::Min(code, hn::Set(words, kMost));
  }

  std::uint32_t normal_bits;
};

using Block1 = BlockVector<kTopExponents[0]>;
using Block2 = BlockVector<kTopExponents[1]>;

HWY_INLINE Vec decode_moment1_vector(const Block1& block, WordVec code) {
  const LaneWords words;
  const auto sign = hn::And(code, hn::Set(words, kSignOfCode));
  const Vec size = block.decode(hn::Sub(code, sign));
  return hn::BitCast(Lanes(), hn::Or(hn::BitCast(words, size), hn::ShiftLeft<24>(sign)));
}

HWY_INLINE WordVec encode_moment1_vector(const Block1& block, Vec value, WordVec random) {
  const LaneWords words;
  const auto bits = hn::BitCast(words, value);
  const auto code = block.encode(hn::And(bits, hn::Set(words, 0x7fffffffU)), random);
  const auto sign = hn::And(hn::ShiftRight<24>(bits), hn::Set(words, kSignOfCode));
  return hn::IfThenZeroElse(hn::Eq(code, hn::Zero(words)), hn::Or(code, sign));
}

HWY_INLINE WordVec encode_moment2_vector(const Block2& block, Vec value, WordVec random) {
  const auto bits = hn::BitCast(LaneWords(), value);
  return hn::Max(block.encode(bits, random), hn::Min(bits, hn::Set(LaneWords(), 1U)));
}

}  // namespace HWY_NAMESPACE
}  // namespace terrace
HWY_AFTER_NAMESPACE();

#endif  // per-target guard
