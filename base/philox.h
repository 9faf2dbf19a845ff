#pragma once

#include <array>
#include <cstdint>

#include "base/half.h"

// Counter-based random numbers: Philox4x32-10 (Salmon, Moraes, Dror, Shaw, "Parallel random
// numbers: as easy as 1, 2, 3", SC'11). The same (key, counter) gives the same numbers on every
// thread, device and machine; there is no state to save.
namespace terrace {

struct PhiloxKey {
  std::uint64_t seed = 0;
};

struct PhiloxCounter {
  std::uint64_t index = 0;   // the element, or group of four elements
  std::uint32_t stream = 0;  // what the numbers are for: a tensor, the sample order
  std::uint32_t step = 0;
};

TERRACE_HOST_DEVICE inline std::array<std::uint32_t, 4> philox(PhiloxKey key,
                                                               PhiloxCounter counter) {
  std::array<std::uint32_t, 4> x = {static_cast<std::uint32_t>(counter.index),
                                    static_cast<std::uint32_t>(counter.index >> 32), counter.stream,
                                    counter.step};
  std::uint32_t k0 = static_cast<std::uint32_t>(key.seed);
  std::uint32_t k1 = static_cast<std::uint32_t>(key.seed >> 32);
  for (int round = 0; round < 10; ++round) {
    const std::uint64_t p0 = 0xD2511F53ULL * x[0];
    const std::uint64_t p1 = 0xCD9E8D57ULL * x[2];
    x = {static_cast<std::uint32_t>(p1 >> 32) ^ x[1] ^ k0, static_cast<std::uint32_t>(p1),
         static_cast<std::uint32_t>(p0 >> 32) ^ x[3] ^ k1, static_cast<std::uint32_t>(p0)};
    k0 += 0x9E3779B9U;
    k1 += 0xBB67AE85U;
  }
  return x;
}

// Returns a number uniform in [0, 1), of 24 bits.
TERRACE_HOST_DEVICE inline float uniform_from_bits(std::uint32_t bits) {
  return static_cast<float>(bits >> 8) * 0x1.0p-24F;
}

// Returns a standard normal number from two words: Box-Muller, cosine branch, in fp32.
float normal_from_bits(std::uint32_t a, std::uint32_t b);

}  // namespace terrace
