#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <span>

#include "base/half.h"
#include "kernels/expert_ops.h"

namespace terrace {

template <typename T>
bool has_nan(const T* logits, std::int64_t E) {
  return std::any_of(logits, logits + E, [](T x) { return std::isnan(to_float(x)); });
}

// The softmax from which the weights of a row's experts are made: over its chosen experts, or over
// all of them where the rule says so. A NaN among the row's logits makes every probability NaN.
template <typename T>
class RowSoftmax {
 public:
  RowSoftmax(const T* logits, std::int64_t E, std::span<const std::int32_t> chosen,
             const ExpertRule& rule)
      : logits_(logits) {
    sum_over(E, chosen, rule);
    if (has_nan(logits, E)) sum_ = std::nanf("");
  }

  float weight(std::int64_t e) const { return probability(e); }
  float probability(std::int64_t e) const { return std::exp(logit(e) - max_) / sum_; }
  // Returns the logarithm of the sum of the exponentials.
  float log_sum() const { return max_ + std::log(sum_); }

 private:
  float logit(std::int64_t e) const { return to_float(logits_[e]); }

  void sum_over(std::int64_t E, std::span<const std::int32_t> chosen, const ExpertRule& rule) {
    if (rule.normalizes) {
      for (const std::int32_t e : chosen) max_ = std::fmax(max_, logit(e));
      for (const std::int32_t e : chosen) sum_ += std::exp(logit(e) - max_);
      return;
    }
    for (std::int64_t e = 0; e < E; ++e) max_ = std::fmax(max_, logit(e));
    for (std::int64_t e = 0; e < E; ++e) sum_ += std::exp(logit(e) - max_);
  }

  const T* logits_;
  float max_ = -HUGE_VALF;
  float sum_ = 0;
};

// Returns whether a row counts in the losses of its router (RouterSums::targets).
inline bool counts_in_router(const TensorView& targets, std::int64_t row) {
  return targets.empty() || targets.as<const std::int32_t>()[row] != kPaddingTarget;
}

}  // namespace terrace
