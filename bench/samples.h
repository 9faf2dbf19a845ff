#pragma once

#include <functional>
#include <span>
#include <vector>

namespace terrace {

// What repeated measurements of one thing gave.
class Samples {
 public:
  Samples() = default;
  explicit Samples(std::vector<double> values) : values_(std::move(values)) {}

  void add(double value) { values_.push_back(value); }
  bool empty() const { return values_.empty(); }
  int count() const { return static_cast<int>(values_.size()); }
  // In the order of the rounds.
  const std::vector<double>& values() const { return values_; }

  // Of an even number: the mean of the two in the middle. Not of none.
  double median() const;
  double low() const;
  double high() const;
  // Returns high / low, and infinity where the lowest is 0 and the highest is not.
  double spread() const;

  // map(value) of each.
  Samples mapped(const std::function<double(double)>& map) const;

 private:
  std::vector<double> values_;
};

// Of every round, the first's value over the second's: a machine that goes slower for a while slows
// both. They have as many rounds.
Samples ratios_of_rounds(const Samples& values, const Samples& limits);

// Returns the least of the values that `percent` of them do not exceed: 50 of the values 1 to 4 is
// 2. Of one value at least.
double percentile_of(std::span<const double> values, double percent);

// Which of them has the highest median; the first of equals. Of one at least.
std::size_t highest_of(std::span<const Samples> samples);

}  // namespace terrace
