#include "base/half_arrays.h"

#include <algorithm>
#include <bit>
#include <cstddef>

#include "base/check.h"

namespace terrace {
namespace {

// The count of numbers to look at before deciding: a loop that may end at each is not vectorised.
constexpr std::size_t kBlock = 4096;

template <typename From, typename To, typename Convert>
void convert(std::span<const From> values, std::span<To> out, Convert one) {
  TERRACE_CHECK_EQ(values.size(), out.size());
  const From* const from = values.data();
  To* const to = out.data();
  const std::size_t count = values.size();
  for (std::size_t i = 0; i < count; ++i) to[i] = one(from[i]);
}

// Returns whether no number has all bits of the exponent set.
template <typename Bits, typename T>
bool has_no_full_exponent(std::span<const T> values, Bits exponent) {
  for (std::size_t begin = 0; begin < values.size(); begin += kBlock) {
    const T* const block = values.data() + begin;
    const std::size_t count = std::min(kBlock, values.size() - begin);
    Bits found = 0;
    for (std::size_t i = 0; i < count; ++i) {
      const auto bits = std::bit_cast<Bits>(block[i]);
      found |= static_cast<Bits>((bits & exponent) == exponent ? 1 : 0);
    }
    if (found != 0) return false;
  }
  return true;
}

}  // namespace

void to_floats(std::span<const Bf16> values, std::span<float> out) {
  convert(values, out, [](Bf16 value) { return to_float(value); });
}

void to_floats(std::span<const Fp16> values, std::span<float> out) {
  convert(values, out, [](Fp16 value) { return to_float(value); });
}

void to_parameters(std::span<const float> exact, std::span<Bf16> out) {
  convert(exact, out, [](float value) { return to_parameter<Bf16>(value); });
}

void to_parameters(std::span<const float> exact, std::span<Fp16> out) {
  convert(exact, out, [](float value) { return to_parameter<Fp16>(value); });
}

void to_remainders(std::span<const float> exact, std::span<std::int16_t> out) {
  convert(exact, out, [](float value) { return split(value).remainder; });
}

void join(std::span<const Bf16> high, std::span<const std::int16_t> remainders,
          std::span<float> out) {
  TERRACE_CHECK_EQ(high.size(), out.size());
  TERRACE_CHECK_EQ(remainders.size(), out.size());
  const Bf16* const upper = high.data();
  const std::int16_t* const lower = remainders.data();
  float* const to = out.data();
  const std::size_t count = out.size();
  for (std::size_t i = 0; i < count; ++i) to[i] = join({upper[i], lower[i]});
}

bool all_finite(std::span<const float> values) {
  return has_no_full_exponent<std::uint32_t>(values, 0x7f800000U);
}

bool all_finite(std::span<const Bf16> values) {
  return has_no_full_exponent<std::uint16_t>(values, 0x7f80U);
}

bool all_finite(std::span<const Fp16> values) {
  return has_no_full_exponent<std::uint16_t>(values, 0x7c00U);
}

}  // namespace terrace
