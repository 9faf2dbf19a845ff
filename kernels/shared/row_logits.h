#pragma once

#include <math.h>

#include <cstdint>

#include "kernels/expert_ops.h"
#include "kernels/shared/element.h"

// The logits of a row of a router, and their softmax, as a thread handles them.
namespace terrace::shared {

// The logits of a row, and the order in which experts are chosen.
template <typename T>
struct RowLogits {
  const T* logits;
  std::int64_t count;

  TERRACE_KERNEL float at(std::int64_t e) const { return widened(logits[e]); }

  // Returns whether expert a is chosen before expert b.
  TERRACE_KERNEL bool comes_before(std::int64_t a, std::int64_t b) const {
    const float of_a = at(a);
    const float of_b = at(b);
    const bool has_nan = of_a != of_a || of_b != of_b;
    if (!has_nan && of_a != of_b) return of_a > of_b;
    if (has_nan && (of_a == of_a || of_b == of_b)) return of_a == of_a;
    return a < b;
  }

  // Returns the expert that is chosen after `last`; the first one where that is -1.
  TERRACE_KERNEL std::int64_t next(std::int64_t last) const {
    std::int64_t best = -1;
    for (std::int64_t e = 0; e < count; ++e) {
      if (last >= 0 && !comes_before(last, e)) continue;
      if (best < 0 || comes_before(e, best)) best = e;
    }
    return best;
  }
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
