#include "offload/drive_shape.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <tuple>

#include "base/check.h"

namespace terrace {

TriedShape best_shape(std::span<const TriedShape> tried) {
  TERRACE_CHECK(!tried.empty());
  constexpr double kAsFast = 0.95;
  double fastest = 0;
  for (const TriedShape& one : tried) fastest = std::max(fastest, one.gb_per_s);
  const TriedShape* best = nullptr;
  const auto merit = [](const TriedShape& one) {
    return std::tuple(one.shape.block_bytes * static_cast<std::size_t>(one.shape.depth),
                      one.shape.block_bytes);
  };
  for (const TriedShape& one : tried) {
    if (one.gb_per_s < kAsFast * fastest) continue;
    if (best == nullptr || merit(*best) < merit(one)) best = &one;
  }
  return *best;
}

StripeShares stripe_shares(std::span<const StripeRoom> stripes, std::uint64_t total_bytes) {
  constexpr double kShareMax = 16;
  constexpr double kSame = 0.8;
  const StripeShares alike(stripes.size(), 1);
  double fastest = 0;
  for (const StripeRoom& stripe : stripes) fastest = std::max(fastest, stripe.gb_per_s);
  StripeShares shares;
  for (const StripeRoom& stripe : stripes) {
    if (stripe.gb_per_s <= 0) return alike;
    const double part = stripe.gb_per_s / fastest;
    const double share = part < kSame ? std::round(kShareMax * part) : kShareMax;
    shares.push_back(static_cast<std::uint32_t>(std::max(1.0, share)));
  }
  const auto sum = std::accumulate(shares.begin(), shares.end(), std::uint64_t{0});
  for (std::size_t i = 0; i < stripes.size(); ++i) {
    // Each stripe may be ahead of its share by a round.
    const std::uint64_t part = divide_up(total_bytes, sum) * shares[i];
    if (stripes[i].room_bytes < part) return alike;
  }
  return shares;
}

}  // namespace terrace
