#include "runtime/data/sample_order.h"

#include <bit>

#include "base/check.h"
#include "base/philox.h"

namespace terrace {
namespace {

// Philox streams of the sample order; parameters count theirs from 0.
constexpr std::uint32_t kPermutationStream = 0xFFFF0000U;  // + round
constexpr std::uint32_t kShiftStream = 0xFFFFFF00U;
constexpr std::uint32_t kRounds = 6;

// Returns the key of an epoch. Epochs are told apart by their keys, because the counter's step is
// narrower than an epoch's number.
PhiloxKey epoch_key(std::uint64_t seed, std::int64_t epoch) {
  const auto words = philox({seed}, {static_cast<std::uint64_t>(epoch), kShiftStream + 1, 0});
  return {words[0] | std::uint64_t{words[1]} << 32};
}

// Applies a bijection of [0, 2^(2 half_bits)): a Feistel network with Philox as its round function.
std::uint64_t feistel(PhiloxKey key, std::uint64_t value, int half_bits) {
  const std::uint64_t mask = (std::uint64_t{1} << half_bits) - 1;
  std::uint64_t left = value >> half_bits;
  std::uint64_t right = value & mask;
  for (std::uint32_t round = 0; round < kRounds; ++round) {
    const auto words = philox(key, {right, kPermutationStream + round, 0});
    const std::uint64_t mixed = left ^ ((words[0] | std::uint64_t{words[1]} << 32) & mask);
    left = right;
    right = mixed;
  }
  return left << half_bits | right;
}

// Applies a bijection of [0, size). Values outside are sent round again until one is inside, which
// takes less than four turns on average.
std::uint64_t permute(PhiloxKey key, std::uint64_t value, std::uint64_t size) {
  const int half_bits = (static_cast<int>(std::bit_width(size - 1)) + 1) / 2;
  if (half_bits == 0) return 0;
  do {
    value = feistel(key, value, half_bits);
  } while (value >= size);
  return value;
}

}  // namespace

std::int64_t windows_per_epoch(std::int64_t tokens, std::int64_t sequence_length) {
  TERRACE_CHECK_LT(0, sequence_length);
  return tokens < 1 ? 0 : (tokens - 1) / sequence_length;
}

std::int64_t sample_of(std::uint64_t seed, std::int64_t global_sample, std::int64_t samples) {
  TERRACE_CHECK_LE(0, global_sample);
  TERRACE_CHECK_LT(0, samples);
  const PhiloxKey key = epoch_key(seed, global_sample / samples);
  return static_cast<std::int64_t>(permute(key, static_cast<std::uint64_t>(global_sample % samples),
                                           static_cast<std::uint64_t>(samples)));
}

std::int64_t window_start(std::uint64_t seed, std::int64_t global_sample, std::int64_t tokens,
                          std::int64_t sequence_length) {
  TERRACE_CHECK_LE(0, global_sample);
  const std::int64_t windows = windows_per_epoch(tokens, sequence_length);
  TERRACE_CHECK_LT(0, windows);
  const PhiloxKey key = epoch_key(seed, global_sample / windows);
  const auto words = philox(key, {0, kShiftStream, 0});
  const auto left_over = static_cast<std::uint64_t>(tokens - 1 - windows * sequence_length);
  const std::uint64_t shift = (words[0] | std::uint64_t{words[1]} << 32) % (left_over + 1);
  const std::int64_t window = sample_of(seed, global_sample, windows);
  return static_cast<std::int64_t>(shift) + window * sequence_length;
}

}  // namespace terrace
