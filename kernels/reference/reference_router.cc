#include <algorithm>
#include <cmath>
#include <span>
#include <vector>

#include "kernels/reference/reference_element.h"
#include "kernels/reference/reference_ops.h"
#include "kernels/row_range.h"

namespace terrace::reference {
namespace {

// Returns whether expert b is chosen before expert a, which is the lower one.
template <typename W>
bool beats(W b, W a) {
  return b > a || (std::isnan(a) && !std::isnan(b));
}

// Marks the `count` largest of some numbers, the lower ones first where they are equal.
template <typename W>
void mark_largest(std::span<const W> numbers, std::int64_t count, std::vector<bool>& is_marked) {
  std::fill(is_marked.begin(), is_marked.end(), false);
  for (std::int64_t j = 0; j < count; ++j) {
    std::size_t best = numbers.size();
    for (std::size_t i = 0; i < numbers.size(); ++i) {
      if (is_marked[i]) continue;
      if (best == numbers.size() || beats(numbers[i], numbers[best])) best = i;
    }
    is_marked[best] = true;
  }
}

// Returns the sum of the two best numbers of a group.
template <typename W>
W two_best(std::span<const W> numbers) {
  std::vector<bool> is_best(numbers.size());
  mark_largest(numbers, 2, is_best);
  W sum = 0;
  for (std::size_t i = 0; i < numbers.size(); ++i) sum += is_best[i] ? numbers[i] : 0;
  return sum;
}

// Returns the numbers by which a row's experts are chosen.
template <typename T>
std::vector<Wide<T>> choice_numbers(const ChooseExperts& op, const T* logits, std::int64_t E) {
  std::vector<Wide<T>> numbers(static_cast<std::size_t>(E));
  for (std::size_t e = 0; e < numbers.size(); ++e) numbers[e] = load(logits[e]);
  if (op.rule.scores == ExpertScores::kSoftmax) return numbers;
  const std::int64_t addends = op.bias.empty() ? 0 : op.bias.elements();
  for (std::size_t e = 0; e < numbers.size(); ++e) {
    Wide<T> bias = 0;
    for (std::size_t i = e; i < static_cast<std::size_t>(addends); i += numbers.size()) {
      bias += load(op.bias.as<const T>()[i]);
    }
    numbers[e] = sigmoid(numbers[e]) + bias;
  }
  const auto groups = static_cast<std::size_t>(op.rule.groups);
  TERRACE_CHECK_EQ(numbers.size() % groups, 0U);
  const std::size_t size = numbers.size() / groups;
  if (groups == 1) return numbers;
  std::vector<Wide<T>> of_groups;
  for (std::size_t g = 0; g < groups; ++g) {
    of_groups.push_back(two_best(std::span<const Wide<T>>(numbers).subspan(g * size, size)));
  }
  std::vector<bool> is_chosen(groups);
  mark_largest(std::span<const Wide<T>>(of_groups), op.rule.chosen_groups, is_chosen);
  for (std::size_t e = 0; e < numbers.size(); ++e) {
    if (!is_chosen[e / size]) numbers[e] = -HUGE_VAL;
  }
  return numbers;
}

// The softmax over some logits of a row.
template <typename W>
struct Softmax {
  W max = -HUGE_VAL;
  W sum = 0;

  W probability(W logit) const { return std::exp(logit - max) / sum; }
  // Returns the logarithm of the sum of the exponentials.
  W log_sum() const { return max + std::log(sum); }
};

// Returns the softmax over the logits from which a row's weights are made.
template <typename T>
Softmax<Wide<T>> softmax_of(const T* logits, std::int64_t E, std::span<const std::int32_t> chosen,
                            const ExpertRule& rule) {
  Softmax<Wide<T>> result;
  const auto count = rule.normalizes ? static_cast<std::int64_t>(chosen.size()) : E;
  const auto logit = [&](std::int64_t i) {
    return load(logits[rule.normalizes ? chosen[static_cast<std::size_t>(i)] : i]);
  };
  for (std::int64_t i = 0; i < count; ++i) result.max = std::fmax(result.max, logit(i));
  for (std::int64_t i = 0; i < count; ++i) result.sum += std::exp(logit(i) - result.max);
  for (std::int64_t e = 0; e < E; ++e) {
    if (std::isnan(load(logits[e]))) result.sum = load(logits[e]);
  }
  return result;
}

// The scores of a row's experts and their weights, where each logit has its own score.
template <typename T>
class Sigmoids {
 public:
  Sigmoids(const T* logits, std::int64_t E, std::span<const std::int32_t> chosen,
           const ExpertRule& rule)
      : logits_(logits), rule_(rule) {
    if (rule.normalizes) {
      for (const std::int32_t e : chosen) sum_ += score(e);
      sum_ += static_cast<Wide<T>>(1e-20);
    }
    for (std::int64_t e = 0; e < E; ++e) {
      if (std::isnan(load(logits[e]))) sum_ = load(logits[e]);
    }
    if (!rule.normalizes && !std::isnan(sum_)) sum_ = 1;
  }

  Wide<T> score(std::int64_t e) const { return sigmoid(load(logits_[e])); }
  Wide<T> weight(std::int64_t e) const { return score(e) / sum_ * rule_.scale; }
  // Returns the gradient of a chosen expert's logit, given its weight's gradient and `mean`, the
  // sum over the chosen experts of the gradient times score / sum.
  Wide<T> gradient(std::int64_t e, Wide<T> dweight, Wide<T> mean) const {
    const Wide<T> dscore = rule_.scale / sum_ * (dweight - (rule_.normalizes ? mean : 0));
    return dscore * score(e) * (1 - score(e));
  }
  Wide<T> share(std::int64_t e) const { return score(e) / sum_; }

 private:
  const T* logits_;
  const ExpertRule& rule_;
  Wide<T> sum_ = 0;
};

template <typename T>
void weigh_chosen(const ChooseExperts& op, const T* logits, std::int64_t E,
                  std::span<const std::int32_t> chosen, Wide<T>* weights) {
  const auto put = [&](const auto& weight_of) {
    for (std::size_t j = 0; j < chosen.size(); ++j) {
      const Wide<T> weight = weight_of(chosen[j]);
      weights[j] = op.rule.rounds_weights ? load(round_to<T>(weight)) : weight;
    }
  };
  if (op.rule.scores == ExpertScores::kSigmoid) {
    const Sigmoids<T> sigmoids(logits, E, chosen, op.rule);
    return put([&](std::int32_t e) { return sigmoids.weight(e); });
  }
  const Softmax<Wide<T>> softmax = softmax_of(logits, E, chosen, op.rule);
  put([&](std::int32_t e) { return softmax.probability(load(logits[e])); });
}

template <typename T>
void choose(const ChooseExperts& op) {
  const std::int64_t R = op.logits.shape[0];
  const std::int64_t E = op.logits.elements() / R;
  const std::int64_t k = op.index.elements() / R;
  TERRACE_CHECK_LE(k, E);
  TERRACE_CHECK_EQ(op.weight.elements(), R * k);
  std::vector<bool> is_chosen(static_cast<std::size_t>(E));
  for (std::int64_t r = 0; r < R; ++r) {
    const T* logits = op.logits.as<T>() + r * E;
    std::int32_t* index = op.index.as<std::int32_t>() + r * k;
    mark_largest<Wide<T>>(choice_numbers(op, logits, E), k, is_chosen);
    for (std::int64_t e = 0, j = 0; e < E; ++e) {
      if (is_chosen[static_cast<std::size_t>(e)]) index[j++] = static_cast<std::int32_t>(e);
    }
    const std::span<const std::int32_t> chosen(index, static_cast<std::size_t>(k));
    weigh_chosen(op, logits, E, chosen, op.weight.as<Wide<T>>() + r * k);
  }
}

// Returns whether a row counts in the losses of its router.
bool counts(const TensorView& targets, std::int64_t row) {
  return targets.empty() || targets.as<std::int32_t>()[row] != kPaddingTarget;
}

// The gradient that the losses of a router add to the logits of a row.
template <typename T>
class RouterLossRow {
 public:
  // Without slopes, and for a row that does not count, there is nothing to add.
  RouterLossRow(const ChooseExpertsBackward& op, std::int64_t row, std::int64_t E)
      : adds_(!op.slopes.empty() && counts(op.targets, row)),
        logits_(op.logits.as<T>() + row * E),
        slopes_(adds_ ? op.slopes.as<const Wide<T>>() : nullptr) {
    if (!adds_) return;
    softmax_ = softmax_of(logits_, E, {}, {.normalizes = false});
    for (std::int64_t e = 0; e < E; ++e) mean_ += probability(e) * slopes_[e];
    of_log_sum_ = slopes_[E] * softmax_.log_sum();
  }

  Wide<T> of(std::int64_t e) const {
    return adds_ ? probability(e) * (slopes_[e] - mean_ + of_log_sum_) : 0;
  }

 private:
  Wide<T> probability(std::int64_t e) const { return softmax_.probability(load(logits_[e])); }

  bool adds_;
  const T* logits_;
  const Wide<T>* slopes_;
  Softmax<Wide<T>> softmax_;
  Wide<T> mean_ = 0;
  Wide<T> of_log_sum_ = 0;
};

// The gradient of a row's logits, where each has its own score.
template <typename T>
void sigmoid_gradients(const Sigmoids<T>& sigmoids, std::span<const std::int32_t> chosen,
                       const Wide<T>* dweight, const RouterLossRow<T>& losses,
                       std::span<T> dlogits) {
  Wide<T> mean = 0;
  for (std::size_t j = 0; j < chosen.size(); ++j) mean += sigmoids.share(chosen[j]) * dweight[j];
  std::size_t next = 0;
  for (std::int32_t e = 0; e < std::ssize(dlogits); ++e) {
    const bool is_chosen = next < chosen.size() && chosen[next] == e;
    const Wide<T> gradient = is_chosen ? sigmoids.gradient(e, dweight[next++], mean) : 0;
    dlogits[static_cast<std::size_t>(e)] = round_to<T>(gradient + losses.of(e));
  }
}

// With p the probabilities and g their gradients, which are zero for an expert that was not chosen:
// dlogit = p (g - sum of p g). If weights are normalised, the other experts have no part in it.
template <typename T>
void choose_gradient(const ChooseExpertsBackward& op) {
  const std::int64_t R = op.logits.shape[0];
  const std::int64_t E = op.logits.elements() / R;
  const std::int64_t k = op.index.elements() / R;
  TERRACE_CHECK_EQ(op.dlogits.elements(), R * E);
  TERRACE_CHECK_EQ(op.dweight.elements(), R * k);
  for (std::int64_t r = 0; r < R; ++r) {
    const T* logits = op.logits.as<T>() + r * E;
    T* dlogits = op.dlogits.as<T>() + r * E;
    const Wide<T>* dweight = op.dweight.as<Wide<T>>() + r * k;
    const std::span<const std::int32_t> chosen(op.index.as<std::int32_t>() + r * k,
                                               static_cast<std::size_t>(k));
    const RouterLossRow<T> losses(op, r, E);
    if (op.rule.scores == ExpertScores::kSigmoid) {
      sigmoid_gradients(Sigmoids<T>(logits, E, chosen, op.rule), chosen, dweight, losses,
                        std::span(dlogits, static_cast<std::size_t>(E)));
      continue;
    }
    const Softmax<Wide<T>> softmax = softmax_of(logits, E, chosen, op.rule);
    Wide<T> mean = 0;
    for (std::size_t j = 0; j < chosen.size(); ++j) {
      mean += softmax.probability(load(logits[chosen[j]])) * dweight[j];
    }
    std::size_t next = 0;
    for (std::int64_t e = 0; e < E; ++e) {
      const bool is_chosen = next < chosen.size() && chosen[next] == e;
      const Wide<T> gradient = is_chosen ? dweight[next++] : 0;
      const bool has_part = is_chosen || !op.rule.normalizes;
      const Wide<T> of_weights =
          has_part ? softmax.probability(load(logits[e])) * (gradient - mean) : 0;
      dlogits[e] = round_to<T>(op.slopes.empty() ? of_weights : of_weights + losses.of(e));
    }
  }
}

template <typename T>
void sum_router(const RouterSums& op) {
  const std::int64_t R = op.logits.shape[0];
  const std::int64_t E = op.logits.elements() / R;
  const std::int64_t k = op.index.elements() / R;
  TERRACE_CHECK_EQ(op.sums.elements(), router_sums_of(E));
  auto* const sums = op.sums.as<double>();
  std::fill_n(sums, router_sums_of(E), 0.0);
  for (std::int64_t r = 0; r < R; ++r) {
    if (!counts(op.targets, r)) continue;
    const T* logits = op.logits.as<T>() + r * E;
    const Softmax<Wide<T>> softmax = softmax_of(logits, E, {}, {.normalizes = false});
    for (std::int64_t j = 0; j < k; ++j) sums[op.index.as<std::int32_t>()[r * k + j]] += 1;
    for (std::int64_t e = 0; e < E; ++e) sums[E + e] += softmax.probability(load(logits[e]));
    const double log_sum = softmax.log_sum();
    sums[2 * E] += log_sum * log_sum;
    sums[2 * E + 1] += 1;
  }
}

template <typename T>
void find_slopes(const RouterSlopes& op) {
  const std::int64_t E = op.slopes.elements() - 1;
  const std::int64_t stride = router_sums_of(E);
  const std::int64_t n = op.sums.elements() / stride;
  TERRACE_CHECK_EQ(op.sums.elements(), n * stride);
  const auto* const sums = op.sums.as<const double>();
  double rows = 0;
  for (std::int64_t layer = 0; layer < n; ++layer) rows += sums[layer * stride + 2 * E + 1];
  const double of_layer = sums[2 * E + 1];
  T* const slopes = op.slopes.as<T>();
  for (std::int64_t e = 0; e < E; ++e) {
    double chosen = 0;
    for (std::int64_t layer = 0; layer < n; ++layer) chosen += sums[layer * stride + e];
    const double slope = op.balance * static_cast<double>(E) * (chosen / rows) / rows;
    slopes[e] = rows > 0 ? static_cast<T>(slope) : 0;
  }
  const double of_log_sum = 2 * op.z / (static_cast<double>(op.layers) * of_layer);
  slopes[E] = rows > 0 ? static_cast<T>(of_log_sum) : 0;
}

}  // namespace

void choose_experts(const KernelContext&, const ChooseExperts& op) {
  with_compute_type(op.logits.dtype, [&]<typename T>(std::type_identity<T>) { choose<T>(op); });
}

void choose_experts_backward(const KernelContext&, const ChooseExpertsBackward& op) {
  with_compute_type(op.logits.dtype,
                    [&]<typename T>(std::type_identity<T>) { choose_gradient<T>(op); });
}

void router_sums(const KernelContext&, const RouterSums& op) {
  with_compute_type(op.logits.dtype, [&]<typename T>(std::type_identity<T>) { sum_router<T>(op); });
}

void router_slopes(const KernelContext&, const RouterSlopes& op) {
  if (op.slopes.dtype == DType::kF64) return find_slopes<double>(op);
  find_slopes<float>(op);
}

}  // namespace terrace::reference
