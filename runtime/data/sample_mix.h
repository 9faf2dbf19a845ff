#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace terrace {

// The choice of the set that each sample of a training is drawn from, in proportion to weights.
// Among any number of samples from the first on, a set has its share of them to about one sample.
// There is no state: the draw depends on the number of the sample alone.
class SampleMix {
 public:
  // The number of samples after which the pattern begins again. Weights are rounded to multiples of
  // 1 / kPeriod.
  static constexpr std::int64_t kPeriod = 1 << 16;

  // Throws ConfigError where a set would have less than one sample of a period.
  explicit SampleMix(std::span<const double> weights);

  struct Draw {
    std::size_t set = 0;
    std::int64_t sample = 0;  // of that set, counted over all that are drawn from it
  };
  Draw draw(std::int64_t global_sample) const;

 private:
  std::vector<std::int32_t> quotas_;  // samples of each set in a period
  std::vector<std::uint16_t> sets_;   // by sample of a period
  std::vector<std::int32_t> before_;  // by sample of a period: samples of its set ahead of it
};

}  // namespace terrace
