#include "runtime/model/rope_table.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numbers>

#include "base/check.h"

namespace terrace {
namespace {

float power(float base, double exponent) {
  return static_cast<float>(std::pow(static_cast<double>(base), exponent));
}

// Returns theta^(2i/r), the inverses of the frequencies before scaling.
std::vector<float> inverse_frequencies(float theta, std::int64_t rotary_width) {
  std::vector<float> inverse;
  for (std::int64_t i = 0; i < rotary_width / 2; ++i) {
    inverse.push_back(power(theta, static_cast<float>(2 * i) / static_cast<float>(rotary_width)));
  }
  return inverse;
}

// Returns the base, which grows with the length so that the slowest wave just spans it (NTK-aware
// scaling). transformers computes it in fp64 when it makes a model. Its forward pass has the length
// as an fp32 tensor, which is raised to the power of an fp64 number.
float dynamic_theta(const RopeOptions& options, std::int64_t length, std::int64_t rotary_width) {
  const auto width = static_cast<double>(rotary_width);
  const double exponent = width / (width - 2.0);
  const auto made_for = static_cast<double>(options.positions);
  if (length <= options.positions) {
    const double ratio = options.factor * made_for / made_for - (options.factor - 1.0);
    return static_cast<float>(options.theta * std::pow(ratio, exponent));
  }
  const float stretched = static_cast<float>(options.factor) * static_cast<float>(length);
  const float ratio =
      stretched / static_cast<float>(made_for) - static_cast<float>(options.factor - 1.0);
  return power(ratio, exponent) * static_cast<float>(options.theta);
}

// Slows long waves down by the factor, keeps short ones, and blends those between.
float scale_llama3(const RopeOptions& options, float frequency) {
  const auto factor = static_cast<float>(options.factor);
  const auto original = static_cast<double>(options.original_positions);
  const float wavelength = 1.0F / frequency * static_cast<float>(2.0 * std::numbers::pi);
  if (wavelength < static_cast<float>(original / options.high_freq_factor)) return frequency;
  if (wavelength > static_cast<float>(original / options.low_freq_factor)) {
    return frequency / factor;
  }
  const float waves = 1.0F / wavelength * static_cast<float>(original);
  const float kept = (waves - static_cast<float>(options.low_freq_factor)) /
                     static_cast<float>(options.high_freq_factor - options.low_freq_factor);
  return (1.0F - kept) * frequency / factor + kept * frequency;
}

// Returns the number, as a fraction, of the frequency that turns `rotations` times in the original
// positions.
double place_of(const RopeOptions& options, double rotations, double rotary_width) {
  const auto original = static_cast<double>(options.original_positions);
  return rotary_width * std::log(original / (rotations * 2.0 * std::numbers::pi)) /
         (2.0 * std::log(options.theta));
}

// YaRN (Peng et al. 2023, arXiv:2309.00071): as llama3, with a ramp over the frequencies' numbers.
std::vector<float> yarn_frequencies(const RopeOptions& options, std::int64_t rotary_width) {
  const auto width = static_cast<double>(rotary_width);
  double low = place_of(options, options.beta_fast, width);
  double high = place_of(options, options.beta_slow, width);
  if (options.truncates) {
    low = std::floor(low);
    high = std::ceil(high);
  }
  low = std::max(low, 0.0);
  high = std::min(high, width - 1.0);
  if (low == high) high += 0.001;
  std::vector<float> frequencies;
  for (const float inverse : inverse_frequencies(static_cast<float>(options.theta), rotary_width)) {
    const auto i = static_cast<float>(frequencies.size());
    const float ramp =
        std::clamp((i - static_cast<float>(low)) / static_cast<float>(high - low), 0.0F, 1.0F);
    const float kept = 1.0F - ramp;
    frequencies.push_back(1.0F / (static_cast<float>(options.factor) * inverse) * (1.0F - kept) +
                          1.0F / inverse * kept);
  }
  return frequencies;
}

// LongRoPE (Ding et al. 2024, arXiv:2402.13753): a factor for each frequency.
std::vector<float> longrope_frequencies(const RopeOptions& options, std::int64_t length,
                                        std::int64_t rotary_width) {
  const std::vector<double>& factors =
      length > options.original_positions ? options.long_factors : options.short_factors;
  TERRACE_CHECK_EQ(static_cast<std::int64_t>(factors.size()), rotary_width / 2);
  std::vector<float> frequencies =
      inverse_frequencies(static_cast<float>(options.theta), rotary_width);
  for (std::size_t i = 0; i < frequencies.size(); ++i) {
    frequencies[i] = 1.0F / (static_cast<float>(factors[i]) * frequencies[i]);
  }
  return frequencies;
}

}  // namespace

std::vector<float> rope_frequencies(const RopeOptions& options, std::int64_t length,
                                    std::int64_t rotary_width) {
  TERRACE_CHECK_EQ(rotary_width % 2, 0);
  if (options.type == RopeType::kYarn) return yarn_frequencies(options, rotary_width);
  if (options.type == RopeType::kLongRope) {
    return longrope_frequencies(options, length, rotary_width);
  }
  const float theta = options.type == RopeType::kDynamic
                          ? dynamic_theta(options, length, rotary_width)
                          : static_cast<float>(options.theta);
  std::vector<float> frequencies = inverse_frequencies(theta, rotary_width);
  for (float& frequency : frequencies) {
    frequency = 1.0F / frequency;
    if (options.type == RopeType::kLinear) frequency /= static_cast<float>(options.factor);
    if (options.type == RopeType::kLlama3) frequency = scale_llama3(options, frequency);
  }
  return frequencies;
}

bool depends_on_length(const RopeOptions& options) {
  return options.type == RopeType::kDynamic || options.type == RopeType::kLongRope;
}

std::int64_t longest_short_document(const RopeOptions& options) {
  if (options.type == RopeType::kDynamic) return options.positions;
  if (options.type == RopeType::kLongRope) return options.original_positions;
  return std::numeric_limits<std::int64_t>::max();
}

void fill_rope_table(const RopeOptions& options, std::int64_t length, std::int64_t rotary_width,
                     std::span<float> table) {
  const std::int64_t positions = static_cast<std::int64_t>(table.size()) / rotary_width;
  TERRACE_CHECK_EQ(static_cast<std::int64_t>(table.size()), positions * rotary_width);
  const std::vector<float> frequencies = rope_frequencies(options, length, rotary_width);
  const auto factor = static_cast<float>(options.attention_factor);
  const std::size_t half = frequencies.size();
  for (std::int64_t t = 0; t < positions; ++t) {
    const std::span<float> row = table.subspan(t * rotary_width, rotary_width);
    for (std::size_t i = 0; i < half; ++i) {
      const double angle = static_cast<float>(t) * frequencies[i];
      row[i] = static_cast<float>(std::cos(angle)) * factor;
      row[half + i] = static_cast<float>(std::sin(angle)) * factor;
    }
  }
}

}  // namespace terrace
