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

// The number of rounds, and when they end earlier.
struct Rounds {
  int most = 1;
  // No measurement begins after this time, and no further round that is not expected to end before
  // it.
  Deadline end = {};
  // No further round begins that is not expected to end before it.
  Deadline own_end = {};
  // How long a measurement takes at least, if that is known. None begins that would end too late.
  double measurement_s = 0;
  // Tells whether any rank wants to end, for ranks that measure together and have to end in the
  // same round. Empty: there is one rank.
  std::function<bool(bool wants_end)> agreed = {};
  // Set if fewer rounds are measured than `most`. Null: nobody wants to know.
  std::atomic<bool>* cut_short = nullptr;
};

// Returns, for Rounds::agreed, whether any rank of the communicator wants to end.
bool any_wants_end(Communicator& ranks, bool wants_end);

// Returns the largest `seconds` of all ranks of the communicator.
double longest_of(Communicator& ranks, double seconds);

// Gets the samples of all complete rounds, the same number for each measurement.
using Publish = FunctionRef<void(const std::vector<Samples>& samples)>;

// Takes every measurement once a round. The order turns by one place from round to round, so that
// drift (of the drive, the clock of the processor, other programs) meets all alike. A round that is
// not complete is dropped. The rounds can be taken in several goes: parts of a benchmark that share
// a time limit first have one round each, and then share the time that is left.
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

// Returns which of several ways to do the same is the quickest, where measuring all of them in all
// rounds would take too long. The least time of each way counts, among a first call and some more
// in turns. If all first calls take long, there are no more.
std::size_t quickest_of(std::span<const std::function<void()>> ways);

}  // namespace terrace
