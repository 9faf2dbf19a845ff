#pragma once

#include <atomic>
#include <cstddef>
#include <functional>
#include <span>
#include <utility>
#include <vector>

#include "base/function_ref.h"
#include "bench/deadline.h"
#include "bench/samples.h"

namespace terrace {

class Communicator;

// Takes one sample of something.
using Measurement = std::function<double()>;

// How many rounds there are, and when they end before that.
struct Rounds {
  int most = 1;
  // No measurement begins after it, and no further round that is not expected to end before it.
  Deadline end = {};
  // No further round begins that is not expected to end before it.
  Deadline own_end = {};
  // Of ranks that measure together, which have to end in the same round: tells whether any of them
  // wants to end. Empty: there is one.
  std::function<bool(bool wants_end)> agreed = {};
  // Set where fewer rounds are measured than `most`. Null: nobody wants to know.
  std::atomic<bool>* cut_short = nullptr;
};

// For Rounds::agreed: whether any rank of the communicator wants to end.
bool any_wants_end(Communicator& ranks, bool wants_end);

// Returns the largest of what the ranks of the communicator have.
double longest_of(Communicator& ranks, double seconds);

// Gets the samples of every complete round, as many of each measurement.
using Publish = FunctionRef<void(const std::vector<Samples>& samples)>;

// Takes every measurement once a round. The order turns by one place from round to round, so that
// what drifts (the drive, the clock of the processor, other programs) meets all alike. A round that
// is not complete is dropped. The rounds can be taken in several goes: parts of a benchmark that
// share a time limit have one each first, and share what is left.
class InterleavedRounds {
 public:
  explicit InterleavedRounds(std::vector<Measurement> measurements)
      : measurements_(std::move(measurements)), samples_(measurements_.size()) {}

  // Takes rounds until there are `rounds.most` in all, and publishes after each. Throws TimeIsUp
  // where not even one round was complete.
  void take(const Rounds& rounds, Publish publish);
  // Returns how many rounds are complete.
  int count() const { return static_cast<int>(round_); }

 private:
  const std::vector<Measurement> measurements_;
  std::vector<Samples> samples_;
  std::size_t round_ = 0;
  double last_round_s_ = 0;
};

// Takes all rounds of some measurements in one go.
void interleave(std::span<const Measurement> measurements, const Rounds& rounds, Publish publish);

// Which of several ways to do the same is the quickest, where to measure all of them in all rounds
// would take too long: the least time of each counts, of a call and some more in turns. The first
// calls are all where they take long.
std::size_t quickest_of(std::span<const std::function<void()>> ways);

}  // namespace terrace
