// philox() of base/philox.h for vectors, with the same bits. Included once per Highway target, after
// hwy/foreach_target.h and hwy/highway.h; hence the guard that Highway toggles instead of
// `#pragma once`.
#if defined(TERRACE_KERNELS_CPU_PHILOX_VECTOR_INL) == defined(HWY_TARGET_TOGGLE)
#ifdef TERRACE_KERNELS_CPU_PHILOX_VECTOR_INL
#undef TERRACE_KERNELS_CPU_PHILOX_VECTOR_INL
#else
#define TERRACE_KERNELS_CPU_PHILOX_VECTOR_INL
#endif

#include <algorithm>
#include <cstdint>

#include "base/philox.h"
#include "hwy/highway.h"
#include "kernels/cpu/cpu_vector.inl"

HWY_BEFORE_NAMESPACE();
namespace terrace {
namespace HWY_NAMESPACE {

#if HWY_TARGET == HWY_SCALAR  // has neither products of 64 bits nor interleaved stores

// The same for the only lane.
class PhiloxVector {
 public:
  PhiloxVector(std::uint64_t seed, std::uint32_t stream, std::uint32_t step)
      : seed_(seed), stream_(stream), step_(step) {}

  HWY_INLINE void operator()(std::uint64_t first, WordVec words[4]) const {
    std::uint32_t numbers[4];
    store(first, numbers);
    for (int word = 0; word < 4; ++word) words[word] = hn::Set(LaneWords(), numbers[word]);
  }
  HWY_INLINE void store(std::uint64_t first, std::uint32_t* out) const {
    std::ranges::copy(philox({seed_}, {first, stream_, step_}), out);
  }

 private:
  std::uint64_t seed_;
  std::uint32_t stream_, step_;
};

#else

// philox() of kLanes neighbouring counters. The lanes of each word are in two vectors, one of even
// and one of odd counters, each lane in the lower half of 64 bits, where products are taken.
class PhiloxVector {
 public:
  PhiloxVector(std::uint64_t seed, std::uint32_t stream, std::uint32_t step)
      : stream_(stream), step_(step) {
    auto k0 = static_cast<std::uint32_t>(seed);
    auto k1 = static_cast<std::uint32_t>(seed >> 32);
    for (RoundKeys& keys : keys_) {
      keys = {k0, k1};
      k0 += 0x9E3779B9U;
      k1 += 0xBB67AE85U;
    }
  }

  // Sets lane i of words[j] to word j of counter first + i. The counters have the same upper 32
  // bits.
  HWY_INLINE void operator()(std::uint64_t first, WordVec words[4]) const {
    Quad even = start(first, 0);
    Quad odd = start(first, 1);
    for (const RoundKeys& keys : keys_) {
      const Wide key0 = hn::Set(WideLanes(), keys.k0);
      const Wide key1 = hn::Set(WideLanes(), keys.k1);
      even = one_round(even, key0, key1);
      odd = one_round(odd, key0, key1);
    }
    words[0] = join_lanes(even.x0, odd.x0);
    words[1] = join_lanes(even.x1, odd.x1);
    words[2] = join_lanes(even.x2, odd.x2);
    words[3] = join_lanes(even.x3, odd.x3);
  }

  // Writes the four words of counter first + i to out[4 i] and the next ones, for each lane i.
  HWY_INLINE void store(std::uint64_t first, std::uint32_t* out) const {
    WordVec words[4];
    (*this)(first, words);
    hn::StoreInterleaved4(words[0], words[1], words[2], words[3], LaneWords(), out);
  }

 private:
  using WideLanes = hn::Repartition<std::uint64_t, LaneWords>;
  using Wide = hn::Vec<WideLanes>;
  struct RoundKeys {
    std::uint64_t k0, k1;  // in the lower halves
  };
  struct Quad {
    Wide x0, x1, x2, x3;  // the upper halves do not matter
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

  std::uint32_t stream_, step_;
  RoundKeys keys_[10];
};

#endif

}  // namespace HWY_NAMESPACE
}  // namespace terrace
HWY_AFTER_NAMESPACE();

#endif  // per-target guard
