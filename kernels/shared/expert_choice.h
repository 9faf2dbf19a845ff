#pragma once

#include <math.h>

#include <cstdint>

#include "kernels/expert_ops.h"
#include "kernels/shared/row_logits.h"

// The order in which a row's experts are chosen, as a thread finds it.
namespace terrace::shared {

// Returns whether a number is chosen before another: the larger one first, then the lower place. A
// NaN comes after all numbers.
TERRACE_KERNEL inline bool is_before(float of_a, float of_b, bool a_is_lower) {
  const bool has_nan = of_a != of_a || of_b != of_b;
  if (!has_nan && of_a != of_b) return of_a > of_b;
  if (has_nan && (of_a == of_a || of_b == of_b)) return of_a == of_a;
  return a_is_lower;
}

// Returns which of the numbers 0 .. count - 1 is chosen after `last`, by number_of(); the first one
// where `last` is -1.
template <typename NumberOf>
TERRACE_KERNEL std::int64_t next_largest(std::int64_t count, std::int64_t last,
                                         const NumberOf& number_of) {
  const float of_last = last < 0 ? 0.0F : number_of(last);
  std::int64_t best = -1;
  float of_best = 0;
  for (std::int64_t i = 0; i < count; ++i) {
    const float number = number_of(i);
    if (last >= 0 && !is_before(of_last, number, last < i)) continue;
    if (best >= 0 && !is_before(number, of_best, i < best)) continue;
    best = i;
    of_best = number;
  }
  return best;
}

// The numbers by which a row's experts are chosen.
template <typename T>
struct ChoiceNumbers {
  RowLogits<T> row;
  const T* bias;
  std::int64_t addends;  // of a bias; 0: there is none
  bool has_sigmoids;
  std::int64_t group;                        // how many experts a group has
  std::uint64_t chosen = ~std::uint64_t{0};  // a bit for each group

  TERRACE_KERNEL float biased(std::int64_t e) const {
    float sum = 0;
    for (std::int64_t i = 0; i < addends; ++i) sum += widened(bias[i * row.count + e]);
    return row.score(e) + sum;
  }
  TERRACE_KERNEL float operator()(std::int64_t e) const {
    if (!has_sigmoids) return row.at(e);
    return (chosen >> (e / group) & 1) != 0 ? biased(e) : -INFINITY;
  }
  // Returns the sum of the two best experts of a group, in ascending order.
  TERRACE_KERNEL float two_best(std::int64_t g) const {
    const auto number = [&](std::int64_t i) { return biased(g * group + i); };
    const std::int64_t best = next_largest(group, -1, number);
    const std::int64_t other = next_largest(group, best, number);
    return best < other ? number(best) + number(other) : number(other) + number(best);
  }
  TERRACE_KERNEL void choose_groups(const ExpertRule& rule) {
    std::uint64_t found = 0;
    std::int64_t last = -1;
    for (std::int32_t j = 0; j < rule.chosen_groups; ++j) {
      last = next_largest(rule.groups, last, [&](std::int64_t g) { return two_best(g); });
      found |= std::uint64_t{1} << last;
    }
    chosen = found;
  }
};

// The sum that a row's scores are divided by, where each logit has its own score.
template <typename T>
TERRACE_KERNEL float score_sum(const RowLogits<T>& row, const std::int32_t* chosen, std::int64_t k,
                               const ExpertRule& rule) {
  float sum = rule.normalizes ? 0.0F : 1.0F;
  for (std::int64_t j = 0; j < k && rule.normalizes; ++j) sum += row.score(chosen[j]);
  if (rule.normalizes) sum += 1e-20F;
  for (std::int64_t e = 0; e < row.count; ++e) {
    const float value = row.at(e);
    if (value != value) sum = value;
  }
  return sum;
}

}  // namespace terrace::shared
