#include "runtime/data/sample_mix.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "base/check.h"
#include "base/error.h"

namespace terrace {
namespace {

// Returns whole numbers in these proportions that add up to a period. They are rounded down, except
// that the largest remainders are rounded up.
std::vector<std::int32_t> quotas_for(std::span<const double> weights) {
  const double sum = std::accumulate(weights.begin(), weights.end(), 0.0);
  std::vector<std::int32_t> quotas;
  std::vector<double> remainders;
  for (const double weight : weights) {
    const double exact = weight / sum * static_cast<double>(SampleMix::kPeriod);
    quotas.push_back(static_cast<std::int32_t>(std::floor(exact)));
    remainders.push_back(exact - std::floor(exact));
  }
  std::int64_t left = SampleMix::kPeriod - std::accumulate(quotas.begin(), quotas.end(), 0LL);
  for (; left > 0; --left) {
    const auto largest = std::ranges::max_element(remainders);
    ++quotas[static_cast<std::size_t>(largest - remainders.begin())];
    *largest = -1;
  }
  for (std::size_t i = 0; i < quotas.size(); ++i) {
    if (quotas[i] > 0) continue;
    throw ConfigError(fmt::format("--data-weights {} of {} is less than one sample in {}",
                                  weights[i], sum, SampleMix::kPeriod),
                      "raise it, or leave the path out");
  }
  return quotas;
}

}  // namespace

SampleMix::SampleMix(std::span<const double> weights) : quotas_(quotas_for(weights)) {
  TERRACE_CHECK_LE(weights.size(), std::size_t{std::numeric_limits<std::uint16_t>::max()});
  std::vector<std::int32_t> drawn(quotas_.size(), 0);
  for (std::int64_t k = 1; k <= kPeriod; ++k) {
    // Choose the set that is furthest behind its share so far.
    std::size_t chosen = 0;
    std::int64_t most = std::numeric_limits<std::int64_t>::min();
    for (std::size_t i = 0; i < quotas_.size(); ++i) {
      const std::int64_t lacks = quotas_[i] * k - drawn[i] * kPeriod;
      if (drawn[i] == quotas_[i] || lacks <= most) continue;
      most = lacks;
      chosen = i;
    }
    sets_.push_back(static_cast<std::uint16_t>(chosen));
    before_.push_back(drawn[chosen]++);
  }
}

SampleMix::Draw SampleMix::draw(std::int64_t global_sample) const {
  TERRACE_CHECK_LE(0, global_sample);
  const auto place = static_cast<std::size_t>(global_sample % kPeriod);
  const std::size_t set = sets_[place];
  return {set, global_sample / kPeriod * quotas_[set] + before_[place]};
}

}  // namespace terrace
