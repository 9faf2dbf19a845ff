#pragma once

#include <math.h>

#include <cstdint>

#include "kernels/expert_ops.h"
#include "kernels/shared/activation.h"
#include "kernels/shared/element.h"

// The logits of a row of a router, and their softmax, as a thread handles them.
namespace terrace::shared {

template <typename T>
struct RowLogits {
  const T* logits;
  std::int64_t count;

  TERRACE_KERNEL float at(std::int64_t e) const { return widened(logits[e]); }
  TERRACE_KERNEL float score(std::int64_t e) const { return sigmoid<float>(at(e)); }
};

// The softmax over a row's chosen experts, or over all of them.
struct RowProbabilities {
  float max = -INFINITY;
  float sum = 0;

  template <typename T>
  TERRACE_KERNEL static RowProbabilities of(const RowLogits<T>& row, const std::int32_t* chosen,
                                            std::int64_t k, const ExpertRule& rule) {
    const std::int64_t count = rule.normalizes ? k : row.count;
    const auto logit = [&](std::int64_t i) { return row.at(rule.normalizes ? chosen[i] : i); };
    RowProbabilities result;
    for (std::int64_t i = 0; i < count; ++i) result.max = ::fmaxf(result.max, logit(i));
    for (std::int64_t i = 0; i < count; ++i) result.sum += ::expf(logit(i) - result.max);
    for (std::int64_t e = 0; e < row.count; ++e) {
      const float value = row.at(e);
      if (value != value) result.sum = value;
    }
    return result;
  }
  // Returns the softmax over all experts.
  template <typename T>
  TERRACE_KERNEL static RowProbabilities of_all(const RowLogits<T>& row) {
    ExpertRule rule;
    rule.normalizes = false;
    return of(row, nullptr, 0, rule);
  }
  TERRACE_KERNEL float at(float logit) const { return ::expf(logit - max) / sum; }
  // Returns the logarithm of the sum of the exponentials.
  TERRACE_KERNEL float log_sum() const { return max + ::logf(sum); }
};

}  // namespace terrace::shared
