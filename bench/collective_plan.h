#pragma once

#include <algorithm>
#include <cstddef>
#include <vector>

#include "base/bytes.h"
#include "bench/bench.h"

namespace terrace {

// The sizes, numbers of calls and numbers of rounds that bench collective measures with a number of
// ranks. Borrows the options.
class CollectivePlan {
 public:
  CollectivePlan(const BenchOptions& options, int ranks) : options_(options), ranks_(ranks) {}

  std::vector<std::size_t> sizes() const {
    if (options_.bytes != 0) return {whole_parts(options_.bytes)};
    if (options_.small) return {whole_parts(64 * kKiB)};
    return {whole_parts(4 * kKiB), whole_parts(128 * kKiB), whole_parts(kMiB),
            whole_parts(16 * kMiB), whole_parts(256 * kMiB)};
  }
  std::size_t largest() const { return sizes().back(); }
  // Returns how often a measurement calls a collective: as often as fits a tenth of `seconds` at 4
  // GB/s, and 1 to 1000 times. It depends only on the options, so all ranks make as many calls.
  int iterations(std::size_t bytes) const {
    const double calls = options_.seconds / 10 * 4e9 / static_cast<double>(bytes);
    return std::clamp(static_cast<int>(calls), 1, 1000);
  }
  int ranks() const { return ranks_; }
  int rounds() const { return options_.repetitions; }
  const BenchOptions& options() const { return options_; }

 private:
  // Rounds up to whole cache lines for every rank.
  std::size_t whole_parts(std::size_t bytes) const {
    return round_up(bytes, 64 * static_cast<std::size_t>(ranks_));
  }

  const BenchOptions& options_;
  const int ranks_;
};

}  // namespace terrace
