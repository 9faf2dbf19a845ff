#pragma once

#include <algorithm>
#include <cmath>
#include <functional>

#include "bench/bench_record.h"

namespace terrace {

// The number of calls in one measurement. With a time limit, it is as large as the first round's
// share of the time allows, which one call tells when it is first measured. Without a limit, it is
// as planned.
class CallCount {
 public:
  // `seconds`: how long a measurement may take; infinite without a time limit.
  CallCount(int planned, double seconds) : planned_(planned), seconds_(seconds) {}

  // `seconds_of_call` measures one call, and has the same result on all ranks that call together.
  int of(const std::function<double()>& seconds_of_call) {
    if (calls_ != 0) return calls_;
    calls_ = planned_;
    if (!std::isinf(seconds_) && planned_ > 1) {
      const double calls = seconds_ / std::max(1e-9, seconds_of_call());
      calls_ = std::max(1, static_cast<int>(std::min(calls, static_cast<double>(planned_))));
    }
    return calls_;
  }

 private:
  const int planned_;
  const double seconds_;
  int calls_ = 0;
};

// Returns how long each of some measurements may take so that the first round of all of them takes
// a third of the time that is left. Infinite without a time limit.
inline double seconds_of_measurement(const BenchRecord& record, std::size_t measurements) {
  constexpr double kShareOfFirstRounds = 1.0 / 3;
  return kShareOfFirstRounds * record.end().seconds_left() / static_cast<double>(measurements);
}

}  // namespace terrace
