#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <span>

#include "base/half.h"
#include "kernels/cpu/row_softmax.h"
#include "kernels/kernel_table.h"

// How the logits of a row become the choice of its experts and their weights
// (kernels/expert_ops.h).
namespace terrace {

inline void store_as(float value, float* target) { *target = value; }
inline void store_as(float value, Bf16* target) { *target = to_bf16_nearest_even(value); }

inline float sigmoid(float x) { return 1.0F / (1.0F + std::exp(-x)); }

// Returns the share of a row whose logit is given, rounded as GateRows says.
inline float gate_share(float logit) { return sigmoid(logit); }
inline float gate_share(Bf16 logit) {
  return to_float(to_bf16_nearest_even(sigmoid(to_float(logit))));
}

// --- the choice ---------------------------------------------------------------------------------

// Returns whether a number b comes before a, which belongs to a lower expert or group.
inline bool beats(float b, float a) { return b > a || (std::isnan(a) && !std::isnan(b)); }

// Writes which of the numbers 0 .. count - 1 have the largest number_of(), best first.
template <typename NumberOf>
void choose_largest(std::int64_t count, std::span<std::int32_t> chosen, NumberOf number_of) {
  std::size_t found = 0;
  for (std::int64_t i = 0; i < count; ++i) {
    // One is put behind all that are not beaten by it.
    const float number = number_of(i);
    std::size_t at = found;
    while (at > 0 && beats(number, number_of(chosen[at - 1]))) --at;
    if (at == chosen.size()) continue;
    found = std::min(found + 1, chosen.size());
    std::copy_backward(chosen.begin() + static_cast<std::ptrdiff_t>(at),
                       chosen.begin() + static_cast<std::ptrdiff_t>(found) - 1,
                       chosen.begin() + static_cast<std::ptrdiff_t>(found));
    chosen[at] = static_cast<std::int32_t>(i);
  }
}

// A row's experts by sigmoid + bias. The numbers are computed again whenever one is asked for:
// there is no memory for them, and few are asked for twice.
template <typename T>
class BiasedSigmoids {
 public:
  BiasedSigmoids(const ChooseExperts& op, std::int64_t row)
      : count_(op.logits.elements() / op.logits.shape[0]),
        logits_(op.logits.as<const T>() + row * count_),
        bias_(op.bias.empty() ? nullptr : op.bias.as<const T>()),
        addends_(op.bias.empty() ? 0 : op.bias.elements() / count_),
        group_(count_ / op.rule.groups) {
    if (op.rule.groups > 1) choose_groups(op.rule);
  }

  float operator()(std::int64_t e) const {
    return is_chosen_[static_cast<std::size_t>(e / group_)] ? biased(e) : -HUGE_VALF;
  }

 private:
  float biased(std::int64_t e) const {
    float bias = 0;
    for (std::int64_t i = 0; i < addends_; ++i) bias += to_float(bias_[i * count_ + e]);
    return sigmoid(to_float(logits_[e])) + bias;
  }

  // Returns the sum of the two best experts of a group, in ascending order.
  float two_best(std::int64_t group) const {
    std::array<std::int32_t, 2> best = {};
    choose_largest(group_, best, [&](std::int64_t i) { return biased(group * group_ + i); });
    std::ranges::sort(best);
    return biased(group * group_ + best[0]) + biased(group * group_ + best[1]);
  }

  void choose_groups(const ExpertRule& rule) {
    std::array<float, ExpertRule::kGroupsMax> sums = {};
    for (std::int32_t g = 0; g < rule.groups; ++g) sums[static_cast<std::size_t>(g)] = two_best(g);
    std::array<std::int32_t, ExpertRule::kGroupsMax> chosen = {};
    const auto wanted = std::span(chosen).first(static_cast<std::size_t>(rule.chosen_groups));
    choose_largest(rule.groups, wanted,
                   [&](std::int64_t g) { return sums[static_cast<std::size_t>(g)]; });
    is_chosen_.fill(false);
    for (const std::int32_t g : wanted) is_chosen_[static_cast<std::size_t>(g)] = true;
  }

  std::int64_t count_;
  const T* logits_;
  const T* bias_;
  std::int64_t addends_;
  std::int64_t group_;                                           // how many experts it has
  std::array<bool, ExpertRule::kGroupsMax> is_chosen_ = {true};  // of groups
};

// Writes the experts of a row, in ascending order.
template <typename T>
void choose_row(const ChooseExperts& op, std::int64_t row, std::span<std::int32_t> chosen) {
  const std::int64_t E = op.logits.elements() / op.logits.shape[0];
  if (op.rule.scores == ExpertScores::kSigmoid) {
    choose_largest(E, chosen, BiasedSigmoids<T>(op, row));
  } else {
    const T* const logits = op.logits.as<const T>() + row * E;
    choose_largest(E, chosen, [=](std::int64_t e) { return to_float(logits[e]); });
  }
  std::sort(chosen.begin(), chosen.end());
}

// --- the weights --------------------------------------------------------------------------------

// The scores of a row from which its weights are made, where each logit has its own.
template <typename T>
class RowSigmoids {
 public:
  RowSigmoids(const T* logits, std::int64_t E, std::span<const std::int32_t> chosen,
              const ExpertRule& rule)
      : logits_(logits), rule_(rule) {
    if (rule.normalizes) {
      sum_ = 0;
      for (const std::int32_t e : chosen) sum_ += score(e);
      sum_ += 1e-20F;
    }
    if (has_nan(logits, E)) sum_ = std::nanf("");
  }

  float weight(std::int64_t e) const { return share(e) * rule_.scale; }
  // Returns an expert's part of the sum, which is its score where there is no sum.
  float share(std::int64_t e) const { return score(e) / sum_; }
  // Returns the gradient of a chosen expert's logit, given its weight's gradient and the mean of
  // the chosen experts' gradients, weighed with their shares.
  float gradient(std::int64_t e, float dweight, float mean) const {
    const float dscore = rule_.scale / sum_ * (rule_.normalizes ? dweight - mean : dweight);
    return dscore * score(e) * (1.0F - score(e));
  }

 private:
  float score(std::int64_t e) const { return sigmoid(to_float(logits_[e])); }

  const T* logits_;
  const ExpertRule& rule_;
  float sum_ = 1;
};

}  // namespace terrace
