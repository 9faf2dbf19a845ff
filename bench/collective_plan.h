#pragma once

#include <algorithm>
#include <cstddef>
#include <limits>
#include <vector>

#include "base/bytes.h"
#include "bench/bench.h"

namespace terrace {

// The sizes, numbers of calls and numbers of rounds that bench collective measures with a number of
// ranks. Borrows the options.
class CollectivePlan {
 public:
  // `most_sizes`: how many sizes of BenchOptions::sizes there are at most. Ranks that are processes
  // agree on it, because they may have found different amounts of free memory.
  CollectivePlan(const BenchOptions& options, int ranks,
                 std::size_t most_sizes = std::numeric_limits<std::size_t>::max())
      : options_(options), ranks_(ranks), most_sizes_(most_sizes) {}

  std::vector<std::size_t> sizes() const {
    if (options_.bytes != 0) return {whole_parts(options_.bytes)};
    if (options_.sizes) return sizes_in(*options_.sizes);
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
  // Rounds up to whole cache lines for every rank, and sizes below 1 KiB to whole numbers of fp32.
  std::size_t whole_parts(std::size_t bytes) const {
    const std::size_t part = bytes < kKiB ? sizeof(float) : 64;
    return round_up(bytes, part * static_cast<std::size_t>(ranks_));
  }

  std::vector<std::size_t> sizes_in(const SizeRange& range) const {
    std::vector<std::size_t> sizes;
    for (std::size_t bytes = range.first; bytes <= range.last; bytes *= range.factor) {
      const std::size_t whole = whole_parts(bytes);
      if (sizes.empty() || sizes.back() < whole) sizes.push_back(whole);  // many ranks: once
      if (bytes > range.last / range.factor) break;
    }
    if (sizes.size() > most_sizes_) sizes.resize(most_sizes_);
    return sizes;
  }

  const BenchOptions& options_;
  const int ranks_;
  const std::size_t most_sizes_;
};

}  // namespace terrace
