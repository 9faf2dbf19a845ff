#include "base/half_arrays.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>
#include <vector>

namespace terrace {
namespace {

// Returns numbers of every exponent with many fractions, both signs, infinities and NaNs. Their
// count is not a multiple of any vector's length.
std::vector<float> many_floats() {
  std::vector<float> values;
  std::uint32_t fraction = 12345;
  for (std::uint32_t i = 0; i < 65'537; ++i) {
    fraction = fraction * 1'664'525U + 1'013'904'223U;
    values.push_back(std::bit_cast<float>((i << 16) | (fraction >> 16)));
    if (i % 3 == 0) values.back() = std::bit_cast<float>((i << 16) | 0x8000U);  // ties
  }
  return values;
}

template <typename T>
std::vector<T> all_halves() {
  std::vector<T> values;
  for (std::uint32_t bits = 0; bits < 65'536; ++bits) {
    values.push_back(T{static_cast<std::uint16_t>(bits)});
  }
  return values;
}

template <typename T>
void expect_widened() {
  const std::vector<T> values = all_halves<T>();
  std::vector<float> out(values.size());
  to_floats(std::span<const T>(values), out);
  for (std::size_t i = 0; i < values.size(); ++i) {
    EXPECT_EQ(std::bit_cast<std::uint32_t>(out[i]),
              std::bit_cast<std::uint32_t>(to_float(values[i])))
        << i;
  }
}

TEST(HalfArrays, AreWidenedAsEachNumberIs) {
  expect_widened<Bf16>();
  expect_widened<Fp16>();
}

TEST(HalfArrays, AreNarrowedSplitAndJoinedAsEachNumberIs) {
  const std::vector<float> exact = many_floats();
  std::vector<Bf16> high(exact.size());
  std::vector<Fp16> halves(exact.size());
  std::vector<std::int16_t> remainders(exact.size());
  std::vector<float> joined(exact.size());
  to_parameters(exact, std::span(high));
  to_parameters(exact, std::span(halves));
  to_remainders(exact, remainders);
  join(high, remainders, joined);
  for (std::size_t i = 0; i < exact.size(); ++i) {
    EXPECT_EQ(high[i], to_parameter<Bf16>(exact[i])) << i;
    EXPECT_EQ(halves[i], to_parameter<Fp16>(exact[i])) << i;
    EXPECT_EQ(remainders[i], split(exact[i]).remainder) << i;
    EXPECT_EQ(std::bit_cast<std::uint32_t>(joined[i]),
              std::bit_cast<std::uint32_t>(join(split(exact[i]))))
        << i;
  }
}

template <typename T>
void expect_found_anywhere(T finite, std::initializer_list<T> others) {
  std::vector<T> values(10'001, finite);
  EXPECT_TRUE(all_finite(std::span<const T>(values)));
  for (const std::size_t at : {0U, 4095U, 4096U, 10'000U}) {
    for (const T other : others) {
      values[at] = other;
      EXPECT_FALSE(all_finite(std::span<const T>(values))) << at;
      values[at] = finite;
    }
  }
}

TEST(HalfArrays, NumbersThatAreNotFiniteAreFoundAnywhere) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  expect_found_anywhere(std::numeric_limits<float>::max(), {kInfinity, -kInfinity, std::nanf("")});
  expect_found_anywhere(Bf16{0x7f7f}, {Bf16{0x7f80}, Bf16{0xff80}, Bf16{0x7fc0}});
  expect_found_anywhere(Fp16{0x7bff}, {Fp16{0x7c00}, Fp16{0xfc00}, Fp16{0x7e00}});
  EXPECT_TRUE(all_finite(std::span<const float>()));
}

}  // namespace
}  // namespace terrace
