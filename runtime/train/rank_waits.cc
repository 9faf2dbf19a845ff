#include "runtime/train/rank_waits.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <vector>

namespace terrace {

std::string describe_rank_waits(std::span<const double> waited_for_s, double seconds) {
  constexpr double kShortShare = 0.02;
  constexpr double kMuchLonger = 2;
  std::vector<double> waits(waited_for_s.begin(), waited_for_s.end());
  if (waits.size() < 2) return "";
  const double of_all = std::accumulate(waits.begin(), waits.end(), 0.0);
  const auto slowest = std::ranges::max_element(waits);
  const auto rank = slowest - waits.begin();
  const double of_slowest = *slowest;
  *slowest = 0;
  const double of_next = std::ranges::max(waits);
  const double ranks = static_cast<double>(waits.size());
  const double share = of_slowest / (ranks - 1) / seconds;
  if (share >= kShortShare && of_slowest > kMuchLonger * of_next) {
    return fmt::format(
        "rank {} makes the others wait: their collectives waited for it {:.0f} % of the run's time",
        rank, 100 * share);
  }
  const double mean_share = of_all / ranks / seconds;
  if (mean_share < kShortShare) return "";
  return fmt::format(
      "the ranks' collectives wait for other ranks {:.0f} % of the time, for no one rank most",
      100 * mean_share);
}

}  // namespace terrace
