#pragma once

#include <algorithm>
#include <cmath>

#include "base/function_ref.h"
#include "bench/bench_record.h"

namespace terrace {

// The calls of one measurement. Without a time limit there are as many as planned. With one, there
// are fewer where these would take too long. How long calls take is seen as they are made: the
// first call alone says little, because it may be a hundred times as quick as the mean on a machine
// that has other work, and then the measurement would not end.
class TimedCalls {
 public:
  // `seconds`: how long a measurement may take; infinite without a time limit.
  TimedCalls(int planned, double seconds) : planned_(planned), seconds_(seconds) {}

  // Returns the mean seconds of a call. `mean_of` makes `count` calls in a row and returns their
  // mean, which is the same on all ranks that call together.
  double seconds_of_call(FunctionRef<double(int count)> mean_of) const {
    if (std::isinf(seconds_)) return mean_of(planned_);
    int made = 0;
    double spent = 0;
    for (int next = 1; next > 0;) {
      spent += next * mean_of(next);
      made += next;
      const double fitting = (seconds_ - spent) / std::max(1e-9, spent / made);
      const double most = std::min(made, planned_ - made);  // at most twice as many calls in all
      next = static_cast<int>(std::clamp(fitting, 0.0, most));
    }
    return spent / made;
  }

 private:
  const int planned_;
  const double seconds_;
};

// Returns how long each of some measurements may take so that the first round of all of them takes
// a third of the time that is left. Infinite without a time limit.
inline double seconds_of_measurement(const BenchRecord& record, std::size_t measurements) {
  constexpr double kShareOfFirstRounds = 1.0 / 3;
  return kShareOfFirstRounds * record.end().seconds_left() / static_cast<double>(measurements);
}

}  // namespace terrace
