#include "runtime/model/parameter_init.h"

#include <algorithm>
#include <array>
#include <bit>
#include <numbers>

#include "base/check.h"
#include "base/philox.h"

// Elements 4g to 4g+3 of a tensor come from the four words of Philox counter g: normal ones by two
// Box-Muller transforms, uniform ones from one word each. The loops go over arrays of one length
// without branches or library calls, so that the compiler vectorises them. They use only operations
// that are correctly rounded, so that every compiler gives the same bits.
namespace terrace {
namespace {

constexpr int kGroups = 64;  // Philox counters at a time
constexpr int kBatch = 4 * kGroups;

using Words = std::array<std::array<std::uint32_t, kGroups>, 4>;
using Floats = std::array<float, kGroups>;

// philox(key, {first + lane, stream, 0}) for each lane.
void fill_words(PhiloxKey key, std::uint64_t first, std::uint32_t stream, Words& x) {
  for (int i = 0; i < kGroups; ++i) {
    const std::uint64_t index = first + static_cast<std::uint64_t>(i);
    x[0][i] = static_cast<std::uint32_t>(index);
    x[1][i] = static_cast<std::uint32_t>(index >> 32);
    x[2][i] = stream;
    x[3][i] = 0;
  }
  auto k0 = static_cast<std::uint32_t>(key.seed);
  auto k1 = static_cast<std::uint32_t>(key.seed >> 32);
  for (int round = 0; round < 10; ++round) {
    for (int i = 0; i < kGroups; ++i) {
      const std::uint64_t p0 = std::uint64_t{0xD2511F53U} * x[0][i];
      const std::uint64_t p1 = std::uint64_t{0xCD9E8D57U} * x[2][i];
      x[0][i] = static_cast<std::uint32_t>(p1 >> 32) ^ x[1][i] ^ k0;
      x[1][i] = static_cast<std::uint32_t>(p1);
      x[2][i] = static_cast<std::uint32_t>(p0 >> 32) ^ x[3][i] ^ k1;
      x[3][i] = static_cast<std::uint32_t>(p0);
    }
    k0 += 0x9E3779B9U;
    k1 += 0xBB67AE85U;
  }
}

// ln(u) for u in (0, 1]: u = m 2^e with m in [sqrt(1/2), sqrt(2)), ln m = 2 artanh((m-1)/(m+1)).
inline float log_of(float u) {
  constexpr std::int32_t kRootHalf = 0x3f3504f3;
  const auto bits = std::bit_cast<std::int32_t>(u);
  const std::int32_t exponent = (bits - kRootHalf) >> 23;
  const float m = std::bit_cast<float>(bits - exponent * (1 << 23));
  const float s = (m - 1.0F) / (m + 1.0F);
  const float s2 = s * s;
  const float series =
      1.0F + s2 * (1.0F / 3.0F + s2 * (1.0F / 5.0F + s2 * (1.0F / 7.0F + s2 * (1.0F / 9.0F))));
  return static_cast<float>(exponent) * std::numbers::ln2_v<float> + 2.0F * s * series;
}

// sqrt(x) for x >= +0 as x / sqrt(x), by three Newton steps.
inline float root_of(float x) {
  float y = std::bit_cast<float>(0x5f3759df - (std::bit_cast<std::int32_t>(x) >> 1));
  y = y * (1.5F - 0.5F * x * y * y);
  y = y * (1.5F - 0.5F * x * y * y);
  y = y * (1.5F - 0.5F * x * y * y);
  return x * y;
}

// Two independent normals from two words: Box-Muller.
void fill_normals(const std::array<std::uint32_t, kGroups>& a,
                  const std::array<std::uint32_t, kGroups>& b, Floats& __restrict first,
                  Floats& __restrict second) {
  for (int i = 0; i < kGroups; ++i) {
    const float u = 1.0F - static_cast<float>(static_cast<std::int32_t>(a[i] >> 8)) * 0x1.0p-24F;
    const float turn = static_cast<float>(static_cast<std::int32_t>(b[i] >> 8)) * 0x1.0p-24F;
    // For u = 1 this is +0; -2 ln(1) would be -0, whose bits root_of cannot take.
    const float radius = root_of(0.0F - 2.0F * log_of(u));
    // The nearest quarter of a turn, and the angle from there, within an eighth of a turn. Adding a
    // half and truncating vectorises; turn is never negative.
    const float quarters = 4.0F * turn + 0.5F;
    const auto quarter = static_cast<std::int32_t>(quarters);
    const float x =
        (turn - 0.25F * static_cast<float>(quarter)) * (2.0F * std::numbers::pi_v<float>);
    const float x2 = x * x;
    const float sine =
        x * (1.0F + x2 * (-1.0F / 6 + x2 * (1.0F / 120 + x2 * (-1.0F / 5040 + x2 / 362880))));
    const float cosine =
        1.0F + x2 * (-1.0F / 2 +
                     x2 * (1.0F / 24 + x2 * (-1.0F / 720 + x2 * (1.0F / 40320 - x2 / 3628800))));
    // Odd quarters swap sine and cosine; the quarter decides the signs.
    const auto sine_bits = std::bit_cast<std::uint32_t>(sine);
    const auto cosine_bits = std::bit_cast<std::uint32_t>(cosine);
    const std::uint32_t swap =
        (sine_bits ^ cosine_bits) & (0U - static_cast<std::uint32_t>(quarter & 1));
    const auto c_sign = static_cast<std::uint32_t>((quarter + 1) & 2) << 30;
    const auto s_sign = static_cast<std::uint32_t>(quarter & 2) << 30;
    first[i] = radius * std::bit_cast<float>(cosine_bits ^ swap ^ c_sign);
    second[i] = radius * std::bit_cast<float>(sine_bits ^ swap ^ s_sign);
  }
}

// Computes elements 4 * first_group onwards.
void fill_batch(PhiloxKey key, std::uint64_t first_group, const ParameterTensor& tensor,
                std::array<float, kBatch>& out) {
  const float deviation = tensor.init_deviation;
  Words words;
  fill_words(key, first_group, tensor.random_stream, words);
  if (tensor.init == Init::kUniform) {
    for (int i = 0; i < kGroups; ++i) {
      for (int lane = 0; lane < 4; ++lane) {
        out[4 * i + lane] = deviation * (2.0F * uniform_from_bits(words[lane][i]) - 1.0F);
      }
    }
    return;
  }
  std::array<Floats, 4> normals;
  fill_normals(words[0], words[1], normals[0], normals[1]);
  fill_normals(words[2], words[3], normals[2], normals[3]);
  for (int i = 0; i < kGroups; ++i) {
    for (int lane = 0; lane < 4; ++lane) out[4 * i + lane] = deviation * normals[lane][i];
  }
}

}  // namespace

void init_parameter(const ParameterTensor& tensor, std::uint64_t seed, std::int64_t begin,
                    std::span<float> out) {
  TERRACE_CHECK_LE(0, begin);
  TERRACE_CHECK_LE(begin + static_cast<std::int64_t>(out.size()), tensor.elements());
  if (tensor.init == Init::kOnes || tensor.init == Init::kZeros) {
    std::fill(out.begin(), out.end(), tensor.init == Init::kOnes ? 1.0F : 0.0F);
    return;
  }
  std::array<float, kBatch> batch;
  auto skip = static_cast<std::size_t>(begin % 4);
  auto group = static_cast<std::uint64_t>(begin / 4);
  while (!out.empty()) {
    fill_batch({seed}, group, tensor, batch);
    const std::size_t count = std::min(batch.size() - skip, out.size());
    std::copy_n(batch.begin() + static_cast<std::ptrdiff_t>(skip), count, out.begin());
    out = out.subspan(count);
    group += kGroups;
    skip = 0;
  }
}

}  // namespace terrace
