#include "bench/bench_record.h"

#include <algorithm>

#include "bench/bench_only.h"

namespace terrace {

void BenchRecord::check_time() const {
  if (end_.is_over()) throw TimeIsUp();
}

Rounds BenchRecord::rounds(int most, double share) {
  return {.most = most,
          .end = end_,
          .own_end = end_.part(share),
          .measurement_s = 0,
          .agreed = {},
          .cut_short = &cut_short_};
}

void BenchRecord::expect(const std::vector<std::string>& names) {
  const std::lock_guard lock(mutex_);
  for (const std::string& name : names) {
    if (is_wanted(only_, name)) expected_.push_back(name);
  }
}

void BenchRecord::leave_out(const std::string& name) {
  const std::lock_guard lock(mutex_);
  std::erase(expected_, name);
}

void BenchRecord::put(BenchResult result) {
  if (!is_wanted(only_, result.name)) return;
  const std::lock_guard lock(mutex_);
  const auto same = std::ranges::find(results_, result.name, &BenchResult::name);
  if (same != results_.end()) {
    *same = std::move(result);
  } else {
    results_.push_back(std::move(result));
  }
}

std::vector<BenchResult> BenchRecord::results() const {
  const std::lock_guard lock(mutex_);
  return results_;
}

std::vector<std::string> BenchRecord::missing() const {
  const std::lock_guard lock(mutex_);
  std::vector<std::string> missing;
  for (const std::string& name : expected_) {
    if (std::ranges::find(results_, name, &BenchResult::name) == results_.end()) {
      missing.push_back(name);
    }
  }
  return missing;
}

void deal_rounds(std::size_t parts, int most, BenchRecord& record,
                 FunctionRef<void(std::size_t part, const Rounds& rounds)> take) {
  for (int round = 1; round <= most; ++round) {
    for (std::size_t part = 0; part < parts; ++part) take(part, record.rounds(round));
  }
}

}  // namespace terrace
