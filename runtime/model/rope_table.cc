#include "runtime/model/rope_table.h"

#include <cmath>
#include <numbers>

#include "base/check.h"

namespace terrace {
namespace {

// Long waves are slowed down by the factor, short ones kept, those between are blended.
double scale_llama3(const RopeOptions& options, double frequency) {
  const double wavelength = 2.0 * std::numbers::pi / frequency;
  const auto original = static_cast<double>(options.original_positions);
  if (wavelength < original / options.high_freq_factor) return frequency;
  if (wavelength > original / options.low_freq_factor) return frequency / options.factor;
  const double kept = (original / wavelength - options.low_freq_factor) /
                      (options.high_freq_factor - options.low_freq_factor);
  return (1.0 - kept) * frequency / options.factor + kept * frequency;
}

}  // namespace

std::vector<double> rope_frequencies(const RopeOptions& options, std::int64_t head_width) {
  TERRACE_CHECK_EQ(head_width % 2, 0);
  std::vector<double> frequencies;
  for (std::int64_t i = 0; i < head_width / 2; ++i) {
    const double exponent = -2.0 * static_cast<double>(i) / static_cast<double>(head_width);
    double frequency = std::pow(options.theta, exponent);
    if (options.type == RopeType::kLinear) frequency /= options.factor;
    if (options.type == RopeType::kLlama3) frequency = scale_llama3(options, frequency);
    frequencies.push_back(frequency);
  }
  return frequencies;
}

void fill_rope_table(const RopeOptions& options, std::int64_t positions, std::int64_t head_width,
                     std::span<float> table) {
  TERRACE_CHECK_EQ(static_cast<std::int64_t>(table.size()), positions * head_width);
  const std::vector<double> frequencies = rope_frequencies(options, head_width);
  const std::size_t half = frequencies.size();
  for (std::int64_t t = 0; t < positions; ++t) {
    const std::span<float> row = table.subspan(t * head_width, head_width);
    for (std::size_t i = 0; i < half; ++i) {
      // The angle is an fp32 product, as in the models' published code.
      const double angle = static_cast<float>(t) * static_cast<float>(frequencies[i]);
      row[i] = static_cast<float>(std::cos(angle));
      row[half + i] = static_cast<float>(std::sin(angle));
    }
  }
}

}  // namespace terrace
