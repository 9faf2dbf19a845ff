#include "runtime/plan/least_budget.h"

#include <algorithm>
#include <array>

#include "base/bytes.h"

namespace terrace {
namespace {

constexpr std::size_t kGrain = 4 * kKiB;
constexpr std::size_t kPrecision = 256;  // a part of the budget
constexpr std::size_t kClearly = 64 * kKiB;
constexpr std::array<double, 4> kSmallerParts = {0.9, 0.8, 0.65, 0.5};

std::size_t precision_at(std::size_t bytes) { return round_up(bytes / kPrecision + 1, kGrain); }

// Goes down in steps that double until a budget is refused, then bisects the rest.
std::size_t least_below(std::size_t enough, FunctionRef<bool(std::size_t)> accepts) {
  std::size_t high = enough;
  std::size_t low = 0;
  for (std::size_t step = precision_at(high); high > 0; step *= 2) {
    const std::size_t next = high - std::min(high, step);
    if (!accepts(next)) {
      low = next;
      break;
    }
    high = next;
  }
  while (high > low && high - low > precision_at(high)) {
    const std::size_t middle = (low + high) / 2 / kGrain * kGrain;
    (accepts(middle) ? high : low) = middle;
  }
  return high;
}

}  // namespace

std::size_t clearly_less(std::size_t bytes) {
  const std::size_t less = std::max(bytes / 100 * 3, kClearly);
  return (bytes - std::min(bytes, less)) / kGrain * kGrain;
}

std::size_t round_up_budget(std::size_t bytes) { return round_up(bytes, kGrain); }

std::size_t least_budget(std::size_t enough, FunctionRef<bool(std::size_t)> accepts) {
  std::size_t least = least_below(enough, accepts);
  for (;;) {
    const std::size_t less = clearly_less(least);
    if (less == 0) return least;
    std::size_t smaller = accepts(less) ? less : least;
    for (const double part : kSmallerParts) {
      if (smaller != least) break;
      const auto bytes = static_cast<std::size_t>(part * static_cast<double>(least));
      if (bytes < less && accepts(bytes / kGrain * kGrain)) smaller = bytes / kGrain * kGrain;
    }
    if (smaller == least) return least;
    least = least_below(smaller, accepts);
  }
}

}  // namespace terrace
