#pragma once

#include <functional>
#include <span>
#include <vector>

namespace terrace {

// What repeated measurements of one thing gave.
class Samples {
 public:
  void add(double value) { values_.push_back(value); }
  bool empty() const { return values_.empty(); }
  int count() const { return static_cast<int>(values_.size()); }
  // In the order of the rounds.
  const std::vector<double>& values() const { return values_; }

  // Of an even number: the mean of the two in the middle. Not of none.
  double median() const;
  double low() const;
  double high() const;

  // map(value) of each.
  Samples mapped(const std::function<double(double)>& map) const;

 private:
  std::vector<double> values_;
};

// Of every round, the first's value over the second's: a machine that goes slower for a while slows
// both. They have as many rounds.
Samples ratios_of_rounds(const Samples& values, const Samples& limits);

// Which of them has the highest median; the first of equals. Of one at least.
std::size_t highest_of(std::span<const Samples> samples);

// Takes one sample of something.
using Measurement = std::function<double()>;

// Takes every measurement once a round. The order turns by one place from round to round, so that
// what drifts (the drive, the clock of the processor, other programs) meets all alike.
std::vector<Samples> interleave(std::span<const Measurement> measurements, int rounds);

// Which of several ways to do the same is the quickest, where to measure all of them in all rounds
// would take too long: the least time of each counts, of a call and some more in turns. The first
// calls are all where they take long.
std::size_t quickest_of(std::span<const std::function<void()>> ways);

}  // namespace terrace
