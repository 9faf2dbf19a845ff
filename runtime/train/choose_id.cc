#include "runtime/train/choose_id.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <numeric>
#include <vector>

#include "base/check.h"
#include "base/error.h"
#include "base/philox.h"

namespace terrace {
namespace {

// "samp": keeps these random numbers apart from the numbers for parameters and for the order of
// samples.
constexpr std::uint32_t kRandomStream = 0x73616d70U;

// Returns the smallest logit that is among the `count` largest.
float least_of_largest(std::span<const float> logits, std::int64_t count) {
  if (count <= 0 || count >= static_cast<std::int64_t>(logits.size())) {
    return -std::numeric_limits<float>::infinity();
  }
  std::vector<float> sorted(logits.begin(), logits.end());
  const auto nth = sorted.begin() + (count - 1);
  std::ranges::nth_element(sorted, nth, std::greater<>());
  return *nth;
}

// Sets to zero the weight of every id that is not among the heaviest few that make up top_p of the
// whole. Among ids of equal weight, the smaller id counts as heavier. At least one id is left.
void keep_heaviest(std::vector<double>& weights, double top_p) {
  const double wanted = top_p * std::accumulate(weights.begin(), weights.end(), 0.0);
  std::vector<std::size_t> heap(weights.size());
  std::iota(heap.begin(), heap.end(), std::size_t{0});
  const auto is_lighter = [&](std::size_t a, std::size_t b) {
    return weights[a] < weights[b] || (weights[a] == weights[b] && a > b);
  };
  std::ranges::make_heap(heap, is_lighter);
  std::vector<double> kept(weights.size(), 0.0);
  double sum = 0;
  do {
    std::ranges::pop_heap(heap, is_lighter);
    kept[heap.back()] = weights[heap.back()];
    sum += weights[heap.back()];
    heap.pop_back();
  } while (sum < wanted && !heap.empty());
  weights = std::move(kept);
}

}  // namespace

std::int32_t choose_id(std::span<const float> logits, const ChoiceRule& rule,
                       const ChoiceDraw& draw) {
  TERRACE_CHECK(!logits.empty());
  if (!std::ranges::all_of(logits, [](float logit) { return std::isfinite(logit); })) {
    throw NotFinite("some of the model's logits are not finite numbers",
                    "sample from an earlier checkpoint");
  }
  const auto likeliest = std::ranges::max_element(logits);
  if (rule.temperature == 0) return static_cast<std::int32_t>(likeliest - logits.begin());
  const float least = least_of_largest(logits, rule.top_k);
  std::vector<double> weights;
  weights.reserve(logits.size());
  for (const float logit : logits) {
    const double below = static_cast<double>(logit) - static_cast<double>(*likeliest);
    weights.push_back(logit < least ? 0.0 : std::exp(below / rule.temperature));
  }
  if (rule.top_p < 1) keep_heaviest(weights, rule.top_p);
  std::vector<double> sums(weights.size());  // up to each id
  std::partial_sum(weights.begin(), weights.end(), sums.begin());
  const auto words = philox({draw.seed}, {draw.index, kRandomStream, 0});
  const double uniform = (words[0] + words[1] * 0x1p-32) * 0x1p-32;
  const double wanted = std::min(uniform * sums.back(), std::nextafter(sums.back(), 0.0));
  return static_cast<std::int32_t>(std::ranges::upper_bound(sums, wanted) - sums.begin());
}

}  // namespace terrace
