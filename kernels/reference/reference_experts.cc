#include <algorithm>
#include <cmath>
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

// Marks the k experts with the largest logits of a row.
template <typename T>
void mark_largest(const T* logits, std::int64_t k, std::vector<bool>& is_chosen) {
  const auto E = static_cast<std::int64_t>(is_chosen.size());
  std::fill(is_chosen.begin(), is_chosen.end(), false);
  for (std::int64_t j = 0; j < k; ++j) {
    std::int64_t best = -1;
    for (std::int64_t e = 0; e < E; ++e) {
      if (is_chosen[static_cast<std::size_t>(e)]) continue;
      if (best < 0 || beats(load(logits[e]), load(logits[best]))) best = e;
    }
    is_chosen[static_cast<std::size_t>(best)] = true;
  }
}

// The softmax over some logits of a row.
template <typename W>
struct Softmax {
  W max = -HUGE_VAL;
  W sum = 0;

  W probability(W logit) const { return std::exp(logit - max) / sum; }
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
    mark_largest(logits, k, is_chosen);
    for (std::int64_t e = 0, j = 0; e < E; ++e) {
      if (is_chosen[static_cast<std::size_t>(e)]) index[j++] = static_cast<std::int32_t>(e);
    }
    const std::span<const std::int32_t> chosen(index, static_cast<std::size_t>(k));
    const Softmax<Wide<T>> softmax = softmax_of(logits, E, chosen, op.rule);
    for (std::int64_t j = 0; j < k; ++j) {
      const Wide<T> weight = softmax.probability(load(logits[index[j]]));
      op.weight.as<Wide<T>>()[r * k + j] =
          op.rule.rounds_weights ? load(round_to<T>(weight)) : weight;
    }
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
      dlogits[e] =
          round_to<T>(has_part ? softmax.probability(load(logits[e])) * (gradient - mean) : 0);
    }
  }
}

// The experts of a product: which sorted rows each has, and from which rows of a side they are
// read.
class Experts {
 public:
  explicit Experts(const ExpertRows& rows)
      : order_(rows.order.as<const std::int32_t>()),
        offsets_(rows.offsets.as<const std::int32_t>()),
        count_(rows.offsets.elements() - 1),
        per_row_(rows.per_row) {}

  std::int64_t count() const { return count_; }
  std::int64_t begin(std::int64_t e) const { return offsets_[e]; }
  std::int64_t end(std::int64_t e) const { return offsets_[e + 1]; }
  // Returns the row of a side that the sorted row i reads.
  template <typename T>
  const T* row_of(const ExpertSide& side, std::int64_t i) const {
    const std::int64_t width = side.matrix.elements() / side.matrix.shape[0];
    return side.matrix.as<const T>() + (side.is_by_row ? order_[i] / per_row_ : i) * width;
  }

 private:
  const std::int32_t* order_;
  const std::int32_t* offsets_;
  std::int64_t count_, per_row_;
};

std::int64_t width_of(const TensorView& matrix) { return matrix.elements() / matrix.shape[0]; }

template <typename T>
void forward(const ExpertForward& op) {
  const std::int64_t N = width_of(op.y);
  const std::int64_t K = width_of(op.x.matrix);
  TERRACE_CHECK_EQ(op.weights.width, N * K);
  const Experts experts(op.rows);
  TERRACE_CHECK_EQ(op.weights.rows, experts.count());
  for (std::int64_t e = 0; e < experts.count(); ++e) {
    const T* weight = reinterpret_cast<const T*>(op.weights.data) + e * op.weights.stride;
    for (std::int64_t i = experts.begin(e); i < experts.end(e); ++i) {
      const T* x = experts.row_of<T>(op.x, i);
      for (std::int64_t n = 0; n < N; ++n) {
        Wide<T> sum = 0;
        for (std::int64_t k = 0; k < K; ++k) sum += load(x[k]) * load(weight[n * K + k]);
        op.y.as<T>()[i * N + n] = round_to<T>(sum);
      }
    }
  }
}

template <typename T>
void backward_input(const ExpertBackwardInput& op) {
  const std::int64_t N = width_of(op.dy.matrix);
  const std::int64_t K = width_of(op.dx);
  TERRACE_CHECK_EQ(op.weights.width, N * K);
  const Experts experts(op.rows);
  TERRACE_CHECK_EQ(op.weights.rows, experts.count());
  for (std::int64_t e = 0; e < experts.count(); ++e) {
    const T* weight = reinterpret_cast<const T*>(op.weights.data) + e * op.weights.stride;
    for (std::int64_t i = experts.begin(e); i < experts.end(e); ++i) {
      const T* dy = experts.row_of<T>(op.dy, i);
      for (std::int64_t k = 0; k < K; ++k) {
        Wide<T> sum = 0;
        for (std::int64_t n = 0; n < N; ++n) sum += load(dy[n]) * load(weight[n * K + k]);
        op.dx.as<T>()[i * K + k] = round_to<T>(sum);
      }
    }
  }
}

template <typename T>
void backward_weight(const ExpertBackwardWeight& op) {
  const std::int64_t N = width_of(op.dy.matrix);
  const std::int64_t K = width_of(op.x.matrix);
  TERRACE_CHECK_EQ(op.dweights.width, N * K);
  const Experts experts(op.rows);
  TERRACE_CHECK_EQ(op.dweights.rows, experts.count());
  for (std::int64_t e = 0; e < experts.count(); ++e) {
    auto* dweight = reinterpret_cast<Wide<T>*>(op.dweights.data) + e * op.dweights.stride;
    for (std::int64_t n = 0; n < N; ++n) {
      for (std::int64_t k = 0; k < K; ++k) {
        Wide<T> sum = 0;
        for (std::int64_t i = experts.begin(e); i < experts.end(e); ++i) {
          sum += load(experts.row_of<T>(op.dy, i)[n]) * load(experts.row_of<T>(op.x, i)[k]);
        }
        join_gradient(dweight[n * K + k], sum, op.mode);
      }
    }
  }
}

template <typename T>
void add_bias(const AddExpertBias& op) {
  const std::int64_t N = width_of(op.y);
  TERRACE_CHECK_EQ(op.biases.width, N);
  const Experts experts(op.rows);
  TERRACE_CHECK_EQ(op.biases.rows, experts.count());
  for (std::int64_t e = 0; e < experts.count(); ++e) {
    const T* bias = reinterpret_cast<const T*>(op.biases.data) + e * op.biases.stride;
    for (std::int64_t i = experts.begin(e); i < experts.end(e); ++i) {
      T* y = op.y.as<T>() + i * N;
      for (std::int64_t n = 0; n < N; ++n) y[n] = round_to<T>(load(y[n]) + load(bias[n]));
    }
  }
}

template <typename T>
void bias_gradient(const ExpertBiasGradient& op) {
  const std::int64_t N = width_of(op.dy.matrix);
  TERRACE_CHECK_EQ(op.dbiases.width, N);
  const Experts experts(op.rows);
  TERRACE_CHECK_EQ(op.dbiases.rows, experts.count());
  for (std::int64_t e = 0; e < experts.count(); ++e) {
    auto* dbias = reinterpret_cast<Wide<T>*>(op.dbiases.data) + e * op.dbiases.stride;
    for (std::int64_t n = 0; n < N; ++n) {
      Wide<T> sum = 0;
      for (std::int64_t i = experts.begin(e); i < experts.end(e); ++i) {
        const std::int32_t slot = op.rows.order.as<std::int32_t>()[i];
        const Wide<T> weight = op.weight.empty() ? 1 : op.weight.as<Wide<T>>()[slot];
        sum += weight * load(experts.row_of<T>(op.dy, i)[n]);
      }
      join_gradient(dbias[n], sum, op.mode);
    }
  }
}

template <typename T>
void bias_share(const AddBiasShare& op) {
  const std::int64_t N = width_of(op.dy.matrix);
  TERRACE_CHECK_EQ(op.biases.width, N);
  const Experts experts(op.rows);
  TERRACE_CHECK_EQ(op.biases.rows, experts.count());
  for (std::int64_t e = 0; e < experts.count(); ++e) {
    const T* bias = reinterpret_cast<const T*>(op.biases.data) + e * op.biases.stride;
    for (std::int64_t i = experts.begin(e); i < experts.end(e); ++i) {
      const T* dy = experts.row_of<T>(op.dy, i);
      Wide<T> sum = 0;
      for (std::int64_t n = 0; n < N; ++n) sum += load(dy[n]) * load(bias[n]);
      op.dweight.as<Wide<T>>()[op.rows.order.as<std::int32_t>()[i]] += sum;
    }
  }
}

template <typename T>
void sum_rows(const SumExpertRows& op) {
  const std::int64_t R = op.y.shape[0];
  const std::int64_t C = width_of(op.y);
  const std::int64_t k = op.place.elements() / R;
  TERRACE_CHECK_EQ(op.rows.elements(), R * k * C);
  for (std::int64_t r = 0; r < R; ++r) {
    const std::int32_t* place = op.place.as<std::int32_t>() + r * k;
    for (std::int64_t c = 0; c < C; ++c) {
      Wide<T> sum = 0;
      for (std::int64_t j = 0; j < k; ++j) {
        const Wide<T> weight = op.weight.empty() ? 1 : op.weight.as<Wide<T>>()[r * k + j];
        sum += weight * load(op.rows.as<T>()[place[j] * C + c]);
      }
      op.y.as<T>()[r * C + c] = round_to<T>(sum);
    }
  }
}

template <typename T>
void weigh_rows(const WeighExpertRows& op) {
  const std::int64_t S = op.order.elements();
  const std::int64_t I = op.dh.elements() / S;
  TERRACE_CHECK_EQ(op.act.elements(), S * I);
  TERRACE_CHECK_EQ(op.dact.elements(), S * I);
  const RowRange rows = rows_in(op.row_range, S);
  for (std::int64_t i = rows.begin; i < rows.end; ++i) {
    const std::int32_t slot = op.order.as<std::int32_t>()[i];
    const Wide<T> weight = op.weight.as<Wide<T>>()[slot];
    Wide<T> sum = 0;
    for (std::int64_t at = i * I; at < (i + 1) * I; ++at) {
      const Wide<T> dh = load(op.dh.as<T>()[at]);
      const Wide<T> act = load(op.act.as<T>()[at]);
      sum += dh * act;
      op.dact.as<T>()[at] = round_to<T>(weight * dh);
      if (!op.weighted.empty()) op.weighted.as<T>()[at] = round_to<T>(weight * act);
    }
    op.dweight.as<Wide<T>>()[slot] = sum;
  }
}

}  // namespace

void choose_experts(const KernelContext&, const ChooseExperts& op) {
  with_compute_type(op.logits.dtype, [&]<typename T>(std::type_identity<T>) { choose<T>(op); });
}

void choose_experts_backward(const KernelContext&, const ChooseExpertsBackward& op) {
  with_compute_type(op.logits.dtype,
                    [&]<typename T>(std::type_identity<T>) { choose_gradient<T>(op); });
}

void sort_slots(const KernelContext&, const SortSlots& op) {
  const std::int64_t S = op.index.elements();
  const std::int64_t E = op.offsets.elements() - 1;
  const std::int32_t* index = op.index.as<std::int32_t>();
  std::int32_t at = 0;
  for (std::int64_t e = 0; e < E; ++e) {
    op.offsets.as<std::int32_t>()[e] = at;
    for (std::int64_t slot = 0; slot < S; ++slot) {
      if (index[slot] != e) continue;
      op.order.as<std::int32_t>()[at] = static_cast<std::int32_t>(slot);
      op.place.as<std::int32_t>()[slot] = at++;
    }
  }
  op.offsets.as<std::int32_t>()[E] = at;
  TERRACE_CHECK_EQ(at, S);
}

void expert_forward(const KernelContext&, const ExpertForward& op) {
  with_compute_type(op.y.dtype, [&]<typename T>(std::type_identity<T>) { forward<T>(op); });
}

void expert_backward_input(const KernelContext&, const ExpertBackwardInput& op) {
  with_compute_type(op.dx.dtype, [&]<typename T>(std::type_identity<T>) { backward_input<T>(op); });
}

void expert_backward_weight(const KernelContext&, const ExpertBackwardWeight& op) {
  with_compute_type(op.x.matrix.dtype,
                    [&]<typename T>(std::type_identity<T>) { backward_weight<T>(op); });
}

void add_expert_bias(const KernelContext&, const AddExpertBias& op) {
  with_compute_type(op.y.dtype, [&]<typename T>(std::type_identity<T>) { add_bias<T>(op); });
}

void expert_bias_gradient(const KernelContext&, const ExpertBiasGradient& op) {
  with_compute_type(op.dy.matrix.dtype,
                    [&]<typename T>(std::type_identity<T>) { bias_gradient<T>(op); });
}

void add_bias_share(const KernelContext&, const AddBiasShare& op) {
  with_compute_type(op.dy.matrix.dtype,
                    [&]<typename T>(std::type_identity<T>) { bias_share<T>(op); });
}

void sum_expert_rows(const KernelContext&, const SumExpertRows& op) {
  with_compute_type(op.y.dtype, [&]<typename T>(std::type_identity<T>) { sum_rows<T>(op); });
}

void weigh_expert_rows(const KernelContext&, const WeighExpertRows& op) {
  with_compute_type(op.act.dtype, [&]<typename T>(std::type_identity<T>) { weigh_rows<T>(op); });
}

}  // namespace terrace::reference
