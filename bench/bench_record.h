#pragma once

#include <atomic>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "bench/bench.h"
#include "bench/rounds.h"

namespace terrace {

// What a benchmark is to measure, and what it has measured so far. Thread-safe, because whoever
// ends the program early reads it while the benchmark measures.
class BenchRecord {
 public:
  // Without an end, nothing is cut short. `only`: patterns of the names of results to keep
  // (bench_only.h).
  explicit BenchRecord(Deadline end = {}, std::vector<std::string> only = {})
      : end_(end), only_(std::move(only)) {}

  const Deadline& end() const { return end_; }
  // Whether a part had fewer rounds than it should have, or none.
  bool is_cut_short() const { return cut_short_ || !missing().empty(); }
  // Throws TimeIsUp where the end has come; for before what takes long.
  void check_time() const;
  // Rounds of a part of the benchmark that may take this part of the time that is left.
  Rounds rounds(int most, double share = 1);

  // Adds names of results that will be put, in this order.
  void expect(const std::vector<std::string>& names);
  // Expects a result no more, which this machine cannot have.
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

// Deals out the time of a record to parts that are measured in rounds, `most` of them each: a round
// of every part, then another one of every part that still fits. take() takes rounds of a part
// until there are `rounds.most`; where the time ends before all parts have one, it throws TimeIsUp.
void deal_rounds(std::size_t parts, int most, BenchRecord& record,
                 FunctionRef<void(std::size_t part, const Rounds& rounds)> take);

}  // namespace terrace
