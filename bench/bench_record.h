#pragma once

#include <atomic>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "bench/bench.h"
#include "bench/rounds.h"

namespace terrace {

// The results that a benchmark is to measure, and those that it has measured so far. Thread-safe,
// because whoever ends the program early reads it while the benchmark measures.
class BenchRecord {
 public:
  // Without an end, nothing is cut short. `only`: patterns of the names of results to keep
  // (bench_only.h).
  explicit BenchRecord(Deadline end = {}, std::vector<std::string> only = {})
      : end_(end), only_(std::move(only)) {}

  const Deadline& end() const { return end_; }
  // Returns whether a part had fewer rounds than it should have, or none.
  bool is_cut_short() const { return cut_short_ || !missing().empty(); }
  // Throws TimeIsUp if the end has come. Called before work that takes long.
  void check_time() const;
  // Returns the rounds of a part of the benchmark that may take `share` of the time that is left.
  Rounds rounds(int most, double share = 1);

  // Adds names of results that will be put, in this order.
  void expect(const std::vector<std::string>& names);
  // Drops an expected result, because this machine cannot have it.
  void leave_out(const std::string& name);
  // Adds a result, or replaces the one of the same name, which had fewer rounds.
  void put(BenchResult result);

  std::vector<BenchResult> results() const;
  // Returns the names that were expected and have no result.
  std::vector<std::string> missing() const;

 private:
  const Deadline end_;
  const std::vector<std::string> only_;
  std::atomic<bool> cut_short_{false};
  mutable std::mutex mutex_;
  std::vector<std::string> expected_;  // guarded by mutex_
  std::vector<BenchResult> results_;   // guarded by mutex_
};

// Deals out the time of a record to parts that are measured in rounds, `most` each: first a round
// of every part, then another one of every part that still fits. take() takes rounds of a part
// until there are `rounds.most`. It throws TimeIsUp if the time ends before all parts have one.
void deal_rounds(std::size_t parts, int most, BenchRecord& record,
                 FunctionRef<void(std::size_t part, const Rounds& rounds)> take);

}  // namespace terrace
