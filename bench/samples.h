#pragma once

#include <functional>
#include <span>
#include <vector>

namespace terrace {

// The values of repeated measurements of one thing.
class Samples {
 public:
  Samples() = default;
  explicit Samples(std::vector<double> values) : values_(std::move(values)) {}

  void add(double value) { values_.push_back(value); }
  bool empty() const { return values_.empty(); }
  int count() const { return static_cast<int>(values_.size()); }
  // Returns the values in the order of the rounds.
  const std::vector<double>& values() const { return values_; }

  // Returns the median; for an even number of values, the mean of the two in the middle. There must
  // be a value.
  double median() const;
  double low() const;
  double high() const;
  // Returns high / low, and infinity where the lowest is 0 and the highest is not.
  double spread() const;

  // Returns map(value) of each value.
  Samples mapped(const std::function<double(double)>& map) const;

 private:
  std::vector<double> values_;
};

// Returns for every round the value over the limit: a machine that goes slower for a while slows
// both. Both have the same number of rounds.
Samples ratios_of_rounds(const Samples& values, const Samples& limits);

// Returns the least of the values that `percent` % of them do not exceed: for the values 1 to 4, 50
// gives 2. There must be at least one value.
double percentile_of(std::span<const double> values, double percent);

// Returns the index of the samples with the highest median, the first of equals. There must be at
// least one.
std::size_t highest_of(std::span<const Samples> samples);

}  // namespace terrace
