#include "kernels/cpu/cpu_experts.h"

#include <algorithm>
#include <optional>
#include <span>

#include "kernels/cpu/cpu_workspace.h"
#include "kernels/cpu/expert_choice.h"
#include "kernels/cpu/highway_targets.h"
#include "kernels/cpu/parallel_blocks.h"
#include "kernels/cpu/row_softmax.h"
#include "kernels/row_range.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/cpu_experts.cc"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
#include "kernels/cpu/cpu_vector.inl"

HWY_BEFORE_NAMESPACE();
namespace terrace {
namespace HWY_NAMESPACE {

// Sums the rows of a row's experts, with the weights where there are some.
template <typename T>
HWY_INLINE void sum_rows_as(const SumExpertRows& op, std::int64_t begin, std::int64_t end) {
  const std::int64_t C = op.y.elements() / op.y.shape[0];
  const std::int64_t k = op.place.elements() / op.y.shape[0];
  const T* const rows = op.rows.as<const T>();
  for (std::int64_t r = begin; r < end; ++r) {
    const std::int32_t* const place = op.place.as<const std::int32_t>() + r * k;
    const float* const weight = op.weight.empty() ? nullptr : op.weight.as<const float>() + r * k;
    T* const y = op.y.as<T>() + r * C;
    for_each_vector(C, [=](std::int64_t i, std::int64_t n) TERRACE_VECTOR_BODY {
      Vec sum = hn::Zero(Lanes());
      for (std::int64_t j = 0; j < k; ++j) {
        const Vec term = load_n(rows + place[j] * C + i, n);
        sum = hn::Add(sum, weight == nullptr ? term : hn::Mul(splat(weight[j]), term));
      }
      store_n(sum, y + i, n);
    });
  }
}

void sum_rows(const SumExpertRows& op, std::int64_t begin, std::int64_t end) {
  if (op.y.dtype == DType::kF32) return sum_rows_as<float>(op, begin, end);
  sum_rows_as<Bf16>(op, begin, end);
}

template <typename T>
HWY_INLINE void weigh_rows_as(const WeighExpertRows& op, std::int64_t begin, std::int64_t end) {
  const std::int64_t I = op.dh.elements() / op.order.elements();
  for (std::int64_t row = begin; row < end; ++row) {
    const std::int32_t slot = op.order.as<const std::int32_t>()[row];
    const T* const dh = op.dh.as<const T>() + row * I;
    const T* const act = op.act.as<const T>() + row * I;
    op.dweight.as<float>()[slot] =
        sum_over(I, [=](std::int64_t i, std::int64_t n) TERRACE_VECTOR_BODY {
          return hn::Mul(load_n(dh + i, n), load_n(act + i, n));
        });
    const Vec weight = splat(op.weight.as<const float>()[slot]);
    T* const dact = op.dact.as<T>() + row * I;
    T* const weighted = op.weighted.empty() ? nullptr : op.weighted.as<T>() + row * I;
    for_each_vector(I, [=](std::int64_t i, std::int64_t n) TERRACE_VECTOR_BODY {
      store_n(hn::Mul(weight, load_n(dh + i, n)), dact + i, n);
      if (weighted != nullptr) store_n(hn::Mul(weight, load_n(act + i, n)), weighted + i, n);
    });
  }
}

void weigh_rows(const WeighExpertRows& op, std::int64_t begin, std::int64_t end) {
  if (op.act.dtype == DType::kF32) return weigh_rows_as<float>(op, begin, end);
  weigh_rows_as<Bf16>(op, begin, end);
}

// Multiplies rows with one number each.
template <typename T>
HWY_INLINE void gate_rows_as(const GateRows& op, std::int64_t begin, std::int64_t end) {
  const std::int64_t C = op.x.elements() / op.x.shape[0];
  for (std::int64_t r = begin; r < end; ++r) {
    const Vec share = splat(gate_share(op.logit.as<const T>()[r]));
    const T* const x = op.x.as<const T>() + r * C;
    T* const y = op.y.as<T>() + r * C;
    for_each_vector(C, [=](std::int64_t i, std::int64_t n) TERRACE_VECTOR_BODY {
      store_n(hn::Mul(share, load_n(x + i, n)), y + i, n);
    });
  }
}

void gate_rows(const GateRows& op, std::int64_t begin, std::int64_t end) {
  if (op.y.dtype == DType::kF32) return gate_rows_as<float>(op, begin, end);
  gate_rows_as<Bf16>(op, begin, end);
}

template <typename T>
HWY_INLINE void gate_rows_backward_as(const GateRowsBackward& op, std::int64_t begin,
                                      std::int64_t end) {
  const std::int64_t C = op.x.elements() / op.x.shape[0];
  for (std::int64_t r = begin; r < end; ++r) {
    const float share = gate_share(op.logit.as<const T>()[r]);
    const Vec shares = splat(share);
    const T* const x = op.x.as<const T>() + r * C;
    const T* const dy = op.dy.as<const T>() + r * C;
    const float sum = sum_over(C, [=](std::int64_t i, std::int64_t n) TERRACE_VECTOR_BODY {
      return hn::Mul(load_n(dy + i, n), load_n(x + i, n));
    });
    store_as(share * (1.0F - share) * sum, op.dlogit.as<T>() + r);
    T* const dx = op.dx.as<T>() + r * C;
    for_each_vector(C, [=](std::int64_t i, std::int64_t n) TERRACE_VECTOR_BODY {
      store_n(hn::Mul(shares, load_n(dy + i, n)), dx + i, n);
    });
  }
}

void gate_rows_backward(const GateRowsBackward& op, std::int64_t begin, std::int64_t end) {
  if (op.dx.dtype == DType::kF32) return gate_rows_backward_as<float>(op, begin, end);
  gate_rows_backward_as<Bf16>(op, begin, end);
}

}  // namespace HWY_NAMESPACE
}  // namespace terrace
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace terrace {

HWY_EXPORT(sum_rows);
HWY_EXPORT(weigh_rows);
HWY_EXPORT(gate_rows);
HWY_EXPORT(gate_rows_backward);

namespace {

// Rows of logits that a task handles.
constexpr std::int64_t kLogitRows = 32;

void check_compute_type(DType type) { TERRACE_CHECK(type == DType::kF32 || type == DType::kBF16); }

// Writes the weights of a row's chosen experts.
template <typename T, typename Scores>
void put_weights(const Scores& scores, std::span<const std::int32_t> chosen, bool rounds,
                 float* weight) {
  for (std::size_t j = 0; j < chosen.size(); ++j) {
    weight[j] = scores.weight(chosen[j]);
    if (sizeof(T) == sizeof(Bf16) && rounds) weight[j] = to_float(to_bf16_nearest_even(weight[j]));
  }
}

template <typename T>
void choose_rows(const ChooseExperts& op, std::int64_t begin, std::int64_t end) {
  const std::int64_t R = op.logits.shape[0];
  const std::int64_t E = op.logits.elements() / R;
  const std::int64_t k = op.index.elements() / R;
  for (std::int64_t r = begin; r < end; ++r) {
    const T* const logits = op.logits.as<const T>() + r * E;
    const std::span<std::int32_t> chosen(op.index.as<std::int32_t>() + r * k,
                                         static_cast<std::size_t>(k));
    choose_row<T>(op, r, chosen);
    float* const weight = op.weight.as<float>() + r * k;
    if (op.rule.scores == ExpertScores::kSigmoid) {
      const RowSigmoids<T> scores(logits, E, chosen, op.rule);
      put_weights<T>(scores, chosen, op.rule.rounds_weights, weight);
    } else {
      const RowSoftmax<T> scores(logits, E, chosen, op.rule);
      put_weights<T>(scores, chosen, op.rule.rounds_weights, weight);
    }
  }
}

// The gradient that the losses of a router add to the logits of a row.
template <typename T>
class RouterLossRow {
 public:
  RouterLossRow(const ChooseExpertsBackward& op, std::int64_t row, std::int64_t E)
      : adds_(!op.slopes.empty() && counts_in_router(op.targets, row)) {
    if (!adds_) return;
    softmax_.emplace(op.logits.as<const T>() + row * E, E, std::span<const std::int32_t>{},
                     ExpertRule{.normalizes = false});
    slopes_ = op.slopes.as<const float>();
    for (std::int64_t e = 0; e < E; ++e) mean_ += softmax_->probability(e) * slopes_[e];
    of_log_sum_ = slopes_[E] * softmax_->log_sum();
  }

  bool adds() const { return adds_; }
  float of(std::int64_t e) const {
    return softmax_->probability(e) * (slopes_[e] - mean_ + of_log_sum_);
  }

 private:
  bool adds_;
  std::optional<RowSoftmax<T>> softmax_;
  const float* slopes_ = nullptr;
  float mean_ = 0;
  float of_log_sum_ = 0;
};

template <typename T>
void sigmoid_gradients(const RowSigmoids<T>& scores, std::span<const std::int32_t> chosen,
                       const float* dweight, const RouterLossRow<T>& losses, std::span<T> dlogits) {
  float mean = 0;
  for (std::size_t j = 0; j < chosen.size(); ++j) mean += scores.share(chosen[j]) * dweight[j];
  std::size_t next = 0;
  for (std::int32_t e = 0; e < std::ssize(dlogits); ++e) {
    const bool is_chosen = next < chosen.size() && chosen[next] == e;
    const float gradient = is_chosen ? scores.gradient(e, dweight[next++], mean) : 0.0F;
    store_as(losses.adds() ? gradient + losses.of(e) : gradient, &dlogits[e]);
  }
}

template <typename T>
void choose_rows_backward(const ChooseExpertsBackward& op, std::int64_t begin, std::int64_t end) {
  const std::int64_t R = op.logits.shape[0];
  const std::int64_t E = op.logits.elements() / R;
  const std::int64_t k = op.index.elements() / R;
  for (std::int64_t r = begin; r < end; ++r) {
    const T* const logits = op.logits.as<const T>() + r * E;
    T* const dlogits = op.dlogits.as<T>() + r * E;
    const float* const dweight = op.dweight.as<const float>() + r * k;
    const std::span<const std::int32_t> chosen(op.index.as<const std::int32_t>() + r * k,
                                               static_cast<std::size_t>(k));
    const RouterLossRow<T> losses(op, r, E);
    if (op.rule.scores == ExpertScores::kSigmoid) {
      sigmoid_gradients(RowSigmoids<T>(logits, E, chosen, op.rule), chosen, dweight, losses,
                        std::span(dlogits, static_cast<std::size_t>(E)));
      continue;
    }
    const RowSoftmax<T> softmax(logits, E, chosen, op.rule);
    float mean = 0;
    for (std::size_t j = 0; j < chosen.size(); ++j) {
      mean += softmax.probability(chosen[j]) * dweight[j];
    }
    std::size_t next = 0;
    for (std::int64_t e = 0; e < E; ++e) {
      const bool is_chosen = next < chosen.size() && chosen[next] == e;
      float gradient = 0;
      if (is_chosen) {
        gradient = softmax.probability(e) * (dweight[next++] - mean);
      } else if (!op.rule.normalizes) {
        gradient = -(softmax.probability(e) * mean);
      }
      store_as(losses.adds() ? gradient + losses.of(e) : gradient, dlogits + e);
    }
  }
}

// Returns the rows of a task that handles about kElementBlock elements.
std::int64_t block_rows(std::int64_t width) {
  return std::max<std::int64_t>(1, kElementBlock / std::max<std::int64_t>(1, width));
}

}  // namespace

void cpu_choose_experts(const KernelContext& context, const ChooseExperts& op) {
  check_compute_type(op.logits.dtype);
  const std::int64_t R = op.logits.shape[0];
  TERRACE_CHECK_LE(op.index.elements(), op.logits.elements());
  TERRACE_CHECK_LE(op.rule.groups, ExpertRule::kGroupsMax);
  TERRACE_CHECK_EQ(op.weight.elements(), op.index.elements());
  for_each_block(context, R, kLogitRows, [&](std::int64_t begin, std::int64_t end) {
    if (op.logits.dtype == DType::kF32) return choose_rows<float>(op, begin, end);
    choose_rows<Bf16>(op, begin, end);
  });
}

void cpu_choose_experts_backward(const KernelContext& context, const ChooseExpertsBackward& op) {
  check_compute_type(op.logits.dtype);
  const std::int64_t R = op.logits.shape[0];
  TERRACE_CHECK_EQ(op.dlogits.elements(), op.logits.elements());
  TERRACE_CHECK_EQ(op.dweight.elements(), op.index.elements());
  for_each_block(context, R, kLogitRows, [&](std::int64_t begin, std::int64_t end) {
    if (op.logits.dtype == DType::kF32) return choose_rows_backward<float>(op, begin, end);
    choose_rows_backward<Bf16>(op, begin, end);
  });
}

// A counting sort on one worker: it reads each slot twice, which is little beside the products.
void cpu_sort_slots(const KernelContext& context, const SortSlots& op) {
  const std::int64_t S = op.index.elements();
  const std::int64_t E = op.offsets.elements() - 1;
  TERRACE_CHECK_EQ(op.order.elements(), S);
  TERRACE_CHECK_EQ(op.place.elements(), S);
  std::int32_t* const next = region_at<std::int32_t>(context.workspace, 0, E);
  context.workers->parallel_for(1, [&](std::int64_t, int) {
    const auto* const index = op.index.as<const std::int32_t>();
    auto* const offsets = op.offsets.as<std::int32_t>();
    std::fill_n(next, E, 0);
    for (std::int64_t slot = 0; slot < S; ++slot) ++next[index[slot]];
    std::int32_t before = 0;
    for (std::int64_t e = 0; e < E; ++e) {
      offsets[e] = before;
      before += next[e];
      next[e] = offsets[e];
    }
    offsets[E] = before;
    for (std::int64_t slot = 0; slot < S; ++slot) {
      const std::int32_t at = next[index[slot]]++;
      op.order.as<std::int32_t>()[at] = static_cast<std::int32_t>(slot);
      op.place.as<std::int32_t>()[slot] = at;
    }
  });
}

std::size_t cpu_sort_slots_workspace(const SortSlots& op, int /*workers*/) {
  WorkspaceLayout layout;
  layout.add(static_cast<std::size_t>(op.offsets.elements()) * sizeof(std::int32_t));
  return layout.total_bytes();
}

void cpu_sum_expert_rows(const KernelContext& context, const SumExpertRows& op) {
  check_compute_type(op.y.dtype);
  const std::int64_t R = op.y.shape[0];
  const std::int64_t k = op.place.elements() / R;
  TERRACE_CHECK_EQ(op.rows.elements(), op.y.elements() * k);
  for_each_block(context, R, block_rows(op.y.elements() / R * k),
                 [&](std::int64_t begin, std::int64_t end) {
                   HWY_DYNAMIC_DISPATCH(sum_rows)(op, begin, end);
                 });
}

void cpu_weigh_expert_rows(const KernelContext& context, const WeighExpertRows& op) {
  check_compute_type(op.act.dtype);
  const std::int64_t S = op.order.elements();
  TERRACE_CHECK_EQ(op.act.elements(), op.dh.elements());
  TERRACE_CHECK_EQ(op.dact.elements(), op.dh.elements());
  const RowRange rows = rows_in(op.row_range, S);
  for_each_block(context, rows.count(), block_rows(op.dh.elements() / S),
                 [&](std::int64_t begin, std::int64_t end) {
                   HWY_DYNAMIC_DISPATCH(weigh_rows)(op, rows.begin + begin, rows.begin + end);
                 });
}

void cpu_gate_rows(const KernelContext& context, const GateRows& op) {
  check_compute_type(op.y.dtype);
  const std::int64_t R = op.x.shape[0];
  TERRACE_CHECK_EQ(op.logit.elements(), R);
  TERRACE_CHECK_EQ(op.y.elements(), op.x.elements());
  for_each_block(context, R, block_rows(op.x.elements() / R),
                 [&](std::int64_t begin, std::int64_t end) {
                   HWY_DYNAMIC_DISPATCH(gate_rows)(op, begin, end);
                 });
}

void cpu_gate_rows_backward(const KernelContext& context, const GateRowsBackward& op) {
  check_compute_type(op.dx.dtype);
  const std::int64_t R = op.x.shape[0];
  TERRACE_CHECK_EQ(op.logit.elements(), R);
  TERRACE_CHECK_EQ(op.dlogit.elements(), R);
  TERRACE_CHECK_EQ(op.dy.elements(), op.x.elements());
  TERRACE_CHECK_EQ(op.dx.elements(), op.x.elements());
  for_each_block(context, R, block_rows(op.x.elements() / R),
                 [&](std::int64_t begin, std::int64_t end) {
                   HWY_DYNAMIC_DISPATCH(gate_rows_backward)(op, begin, end);
                 });
}

}  // namespace terrace
#endif  // HWY_ONCE
