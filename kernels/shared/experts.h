#pragma once

#include <math.h>

#include <cstdint>

#include "kernels/kernel_table.h"
#include "kernels/shared/expert_choice.h"
#include "kernels/shared/map.h"
#include "kernels/shared/row_logits.h"
#include "kernels/shared/token_sort.h"

// The ops of experts besides their products: the choice, the sorting of slots, sums of rows, and
// the gate of an expert of all rows.
namespace terrace::shared {

// --- the choice ---------------------------------------------------------------------------------

// A thread chooses the experts of a row.
template <typename T>
struct ChooseExpertsBody {
  const T* logits;
  std::int32_t* index;
  float* weight;
  std::int64_t E, k;
  ExpertRule rule;
  const T* bias;
  std::int64_t addends;  // of a bias; 0: there is none

  // Puts a number into the first `count` ones, which are in ascending order.
  TERRACE_KERNEL static void insert(std::int32_t* sorted, std::int64_t count, std::int32_t number) {
    for (; count > 0 && sorted[count - 1] > number; --count) sorted[count] = sorted[count - 1];
    sorted[count] = number;
  }

  TERRACE_KERNEL void operator()(std::int64_t, std::int64_t r, int) const {
    const RowLogits<T> row{logits + r * E, E};
    const bool has_sigmoids = rule.scores == ExpertScores::kSigmoid;
    ChoiceNumbers<T> numbers{row, bias, addends, has_sigmoids, E / rule.groups};
    if (has_sigmoids && rule.groups > 1) numbers.choose_groups(rule);
    std::int32_t* const chosen = index + r * k;
    std::int64_t last = -1;
    for (std::int64_t j = 0; j < k; ++j) {
      last = next_largest(E, last, numbers);
      insert(chosen, j, static_cast<std::int32_t>(last));
    }
    if (has_sigmoids) {
      const float sum = score_sum(row, chosen, k, rule);
      for (std::int64_t j = 0; j < k; ++j) put(r, j, row.score(chosen[j]) / sum * rule.scale);
      return;
    }
    const auto probabilities = RowProbabilities::of(row, chosen, k, rule);
    for (std::int64_t j = 0; j < k; ++j) put(r, j, probabilities.at(row.at(chosen[j])));
  }

  TERRACE_KERNEL void put(std::int64_t r, std::int64_t j, float exact) const {
    weight[r * k + j] = rule.rounds_weights ? widened(round_to<T>(exact)) : exact;
  }
};

template <typename Launcher>
void choose_experts(Launcher& launcher, const ChooseExperts& op) {
  const std::int64_t R = op.logits.shape[0];
  const std::int64_t E = op.logits.elements() / R;
  const std::int64_t k = op.index.elements() / R;
  TERRACE_CHECK_LE(k, E);
  TERRACE_CHECK_EQ(op.weight.elements(), R * k);
  TERRACE_CHECK_LE(op.rule.groups, ExpertRule::kGroupsMax);
  with_compute_type(op.logits.dtype, [&]<typename T>(std::type_identity<T>) {
    const ChooseExpertsBody<T> body{op.logits.as<T>(),
                                    op.index.as<std::int32_t>(),
                                    op.weight.as<float>(),
                                    E,
                                    k,
                                    op.rule,
                                    op.bias.empty() ? nullptr : op.bias.as<T>(),
                                    op.bias.empty() ? 0 : op.bias.elements() / E};
    launch_map<1>(launcher, "choose_experts", 1, R, body);
  });
}

// The gradient that the losses of a router add to the logits of a row.
template <typename T>
struct RouterLossRow {
  const float* slopes;  // null: there is nothing to add
  RowProbabilities softmax;
  float mean = 0;
  float of_log_sum = 0;

  TERRACE_KERNEL static RouterLossRow of_row(const RowLogits<T>& row, const float* slopes) {
    RouterLossRow result{slopes, {}};
    if (slopes == nullptr) return result;
    result.softmax = RowProbabilities::of_all(row);
    for (std::int64_t e = 0; e < row.count; ++e) {
      result.mean += result.softmax.at(row.at(e)) * slopes[e];
    }
    result.of_log_sum = slopes[row.count] * result.softmax.log_sum();
    return result;
  }
  TERRACE_KERNEL float of(const RowLogits<T>& row, std::int64_t e) const {
    return softmax.at(row.at(e)) * (slopes[e] - mean + of_log_sum);
  }
};

// A thread computes the gradients of a row's logits.
template <typename T>
struct ChooseExpertsBackwardBody {
  const T* logits;
  const std::int32_t* index;
  const float* dweight;
  T* dlogits;
  std::int64_t E, k;
  ExpertRule rule;
  const float* slopes;          // null: without the router's losses
  const std::int32_t* targets;  // null: all rows count in them

  TERRACE_KERNEL void operator()(std::int64_t, std::int64_t r, int) const {
    const RowLogits<T> row{logits + r * E, E};
    const std::int32_t* const chosen = index + r * k;
    const float* const gradients = dweight + r * k;
    const bool counts = targets == nullptr || targets[r] != kPaddingTarget;
    const auto losses = RouterLossRow<T>::of_row(row, counts ? slopes : nullptr);
    if (rule.scores == ExpertScores::kSigmoid) return of_sigmoids(row, chosen, gradients, losses);
    const auto probabilities = RowProbabilities::of(row, chosen, k, rule);
    float mean = 0;
    for (std::int64_t j = 0; j < k; ++j) {
      mean += probabilities.at(row.at(chosen[j])) * gradients[j];
    }
    std::int64_t next = 0;
    for (std::int64_t e = 0; e < E; ++e) {
      const bool is_chosen = next < k && chosen[next] == e;
      float gradient = 0;
      if (is_chosen || !rule.normalizes) {
        gradient = probabilities.at(row.at(e)) * ((is_chosen ? gradients[next] : 0.0F) - mean);
      }
      if (losses.slopes != nullptr) gradient += losses.of(row, e);
      dlogits[r * E + e] = round_to<T>(gradient);
      next += is_chosen ? 1 : 0;
    }
  }

  // With s the scores, D their sum and g the gradients of the weights: the gradient of a chosen
  // score is scale / D (g - sum of g s / D), or scale g.
  TERRACE_KERNEL void of_sigmoids(const RowLogits<T>& row, const std::int32_t* chosen,
                                  const float* gradients, const RouterLossRow<T>& losses) const {
    T* const results = dlogits + (row.logits - logits);
    const float sum = score_sum(row, chosen, k, rule);
    float mean = 0;
    for (std::int64_t j = 0; j < k && rule.normalizes; ++j) {
      mean += row.score(chosen[j]) / sum * gradients[j];
    }
    std::int64_t next = 0;
    for (std::int64_t e = 0; e < E; ++e) {
      const bool is_chosen = next < k && chosen[next] == e;
      const float score = row.score(e);
      float gradient = 0;
      if (is_chosen)
        gradient = rule.scale / sum * (gradients[next] - mean) * score * (1.0F - score);
      if (losses.slopes != nullptr) gradient += losses.of(row, e);
      results[e] = round_to<T>(gradient);
      next += is_chosen ? 1 : 0;
    }
  }
};

template <typename Launcher>
void choose_experts_backward(Launcher& launcher, const ChooseExpertsBackward& op) {
  const std::int64_t R = op.logits.shape[0];
  const std::int64_t E = op.logits.elements() / R;
  const std::int64_t k = op.index.elements() / R;
  TERRACE_CHECK_EQ(op.dlogits.elements(), R * E);
  TERRACE_CHECK_EQ(op.dweight.elements(), R * k);
  with_compute_type(op.logits.dtype, [&]<typename T>(std::type_identity<T>) {
    const ChooseExpertsBackwardBody<T> body{
        op.logits.as<T>(),
        op.index.as<std::int32_t>(),
        op.dweight.as<float>(),
        op.dlogits.as<T>(),
        E,
        k,
        op.rule,
        op.slopes.empty() ? nullptr : op.slopes.as<float>(),
        op.targets.empty() ? nullptr : op.targets.as<std::int32_t>()};
    launch_map<1>(launcher, "choose_experts_backward", 1, R, body);
  });
}

// --- the sorting of slots -----------------------------------------------------------------------

struct NumberSlotsBody {
  const std::int32_t* index;
  SortedTokens slots;

  TERRACE_KERNEL void operator()(std::int64_t, std::int64_t slot, int) const {
    slots.tokens[slot] = index[slot];
    slots.positions[slot] = static_cast<std::int32_t>(slot);
  }
};

// Writes what follows from the sorted slots. The first slot of an expert writes the offsets of all
// experts up to its own that follow the expert before.
struct PlaceSlotsBody {
  SortedTokens sorted;
  std::int32_t* order;
  std::int32_t* place;
  std::int32_t* offsets;
  std::int64_t slots, experts;

  TERRACE_KERNEL void operator()(std::int64_t, std::int64_t i, int) const {
    const std::int32_t slot = sorted.positions[i];
    order[i] = slot;
    place[slot] = static_cast<std::int32_t>(i);
    const std::int32_t own = sorted.tokens[i];
    const std::int32_t before = i == 0 ? -1 : sorted.tokens[i - 1];
    for (std::int32_t e = before + 1; e <= own; ++e) offsets[e] = static_cast<std::int32_t>(i);
    if (i + 1 < slots) return;
    for (std::int64_t e = own + 1; e <= experts; ++e) {
      offsets[e] = static_cast<std::int32_t>(slots);
    }
  }
};

inline std::size_t sort_slots_workspace(const SortSlots& op, int /*workers*/) {
  const std::int64_t S = op.index.elements();
  const auto slots = static_cast<std::size_t>(S) * sizeof(std::int32_t);
  const auto counts =
      static_cast<std::size_t>(kDigits * SortChunks(S).count) * sizeof(std::int32_t);
  return 4 * WorkspaceCutter::padded_bytes(slots) + WorkspaceCutter::padded_bytes(counts);
}

template <typename Launcher>
void sort_slots(Launcher& launcher, const SortSlots& op) {
  const std::int64_t S = op.index.elements();
  const std::int64_t E = op.offsets.elements() - 1;
  TERRACE_CHECK_EQ(op.order.elements(), S);
  TERRACE_CHECK_EQ(op.place.elements(), S);
  WorkspaceCutter cutter(launcher.workspace());
  SortSpace space;
  for (SortedTokens* slots : {&space.tokens, &space.other}) {
    slots->tokens = cutter.take<std::int32_t>(S);
    slots->positions = cutter.take<std::int32_t>(S);
  }
  space.counts = cutter.take<std::int32_t>(kDigits * SortChunks(S).count);
  launch_map<1>(launcher, "sort_slots", 1, S,
                NumberSlotsBody{op.index.as<std::int32_t>(), space.tokens});
  const SortedTokens sorted = sort_tokens(launcher, space, S, E - 1);
  const PlaceSlotsBody body{sorted,
                            op.order.as<std::int32_t>(),
                            op.place.as<std::int32_t>(),
                            op.offsets.as<std::int32_t>(),
                            S,
                            E};
  launch_map<1>(launcher, "sort_slots", 1, S, body);
}

// --- sums ---------------------------------------------------------------------------------------

template <typename T>
struct SumExpertRowsBody {
  const T* rows;
  const std::int32_t* place;
  const float* weight;  // may be null
  T* y;
  std::int64_t C, k;
  bool aligned;

  TERRACE_KERNEL void operator()(std::int64_t r, std::int64_t first, int count) const {
    constexpr int kCount = kPackOf<T>;
    float sums[kCount] = {};
    for (std::int64_t j = 0; j < k; ++j) {
      const std::int64_t row = place[r * k + j];
      const auto terms = load_pack<T, kCount>(rows + row * C + first, count, aligned);
      for (int i = 0; i < kCount; ++i) {
        const float term = widened(terms.at[i]);
        sums[i] += weight == nullptr ? term : weight[r * k + j] * term;
      }
    }
    Pack<T, kCount> result;
    for (int i = 0; i < kCount; ++i) result.at[i] = round_to<T>(sums[i]);
    store_pack(y + r * C + first, result, count, aligned);
  }
};

template <typename Launcher>
void sum_expert_rows(Launcher& launcher, const SumExpertRows& op) {
  const std::int64_t R = op.y.shape[0];
  const std::int64_t C = op.y.elements() / R;
  const std::int64_t k = op.place.elements() / R;
  TERRACE_CHECK_EQ(op.rows.elements(), R * k * C);
  with_compute_type(op.y.dtype, [&]<typename T>(std::type_identity<T>) {
    const SumExpertRowsBody<T> body{
        op.rows.as<T>(),
        op.place.as<std::int32_t>(),
        op.weight.empty() ? nullptr : op.weight.as<float>(),
        op.y.as<T>(),
        C,
        k,
        may_load_packs({op.rows.data, op.y.data}, static_cast<std::size_t>(C) * sizeof(T))};
    launch_map<kPackOf<T>>(launcher, "sum_expert_rows", R, C, body);
  });
}

// A block handles a sorted row: each thread adds some of its products in order, then block.sum()
// adds the threads' sums.
template <typename T>
struct WeighExpertRowsKernel {
  const std::int32_t* order;
  const float* weight;
  const T* dh;
  const T* act;
  float* dweight;
  T* dact;      // may be dh
  T* weighted;  // may be null
  std::int64_t I;
  LaunchedRows rows;

  static constexpr int kThreads = 128;

  template <typename Block>
  TERRACE_KERNEL void operator()(Block& block) const {
    const std::int64_t row = block.index();
    if (!rows.have(row)) return;
    const std::int32_t slot = order[row];
    const float factor = weight[slot];
    typename Block::template PerThread<float> sums;
    block.for_each_thread([&](int t) {
      float sum = 0;
      for (std::int64_t at = row * I + t; at < (row + 1) * I; at += kThreads) {
        const float gradient = widened(dh[at]);
        const float value = widened(act[at]);
        sum += gradient * value;
        dact[at] = round_to<T>(factor * gradient);
        if (weighted != nullptr) weighted[at] = round_to<T>(factor * value);
      }
      sums[t] = sum;
    });
    const float total = block.sum(sums);
    block.for_each_thread([&](int t) {
      if (t == 0) dweight[slot] = total;
    });
  }
};

template <typename Launcher>
void weigh_expert_rows(Launcher& launcher, const WeighExpertRows& op) {
  const std::int64_t S = op.order.elements();
  TERRACE_CHECK_EQ(op.act.elements(), op.dh.elements());
  TERRACE_CHECK_EQ(op.dact.elements(), op.dh.elements());
  with_compute_type(op.act.dtype, [&]<typename T>(std::type_identity<T>) {
    using Kernel = WeighExpertRowsKernel<T>;
    const Kernel kernel{op.order.as<std::int32_t>(),
                        op.weight.as<float>(),
                        op.dh.as<T>(),
                        op.act.as<T>(),
                        op.dweight.as<float>(),
                        op.dact.as<T>(),
                        op.weighted.empty() ? nullptr : op.weighted.as<T>(),
                        op.dh.elements() / S,
                        LaunchedRows(op.row_range)};
    launcher.template launch<Kernel::kThreads>("weigh_expert_rows", kernel, S);
  });
}

// --- the gate of an expert of all rows ----------------------------------------------------------

// Returns the share of a row whose logit is given, rounded as GateRows says.
template <typename T>
TERRACE_KERNEL float gate_share(T logit) {
  return widened(round_to<T>(sigmoid<float>(widened(logit))));
}

template <typename T>
struct GateRowsBody {
  const T* x;
  const T* logit;
  T* y;
  std::int64_t C;
  bool aligned;

  TERRACE_KERNEL void operator()(std::int64_t r, std::int64_t first, int count) const {
    constexpr int kCount = kPackOf<T>;
    const float share = gate_share(logit[r]);
    const auto values = load_pack<T, kCount>(x + r * C + first, count, aligned);
    Pack<T, kCount> result;
    for (int i = 0; i < kCount; ++i) result.at[i] = round_to<T>(share * widened(values.at[i]));
    store_pack(y + r * C + first, result, count, aligned);
  }
};

template <typename Launcher>
void gate_rows(Launcher& launcher, const GateRows& op) {
  const std::int64_t R = op.x.shape[0];
  const std::int64_t C = op.x.elements() / R;
  TERRACE_CHECK_EQ(op.logit.elements(), R);
  TERRACE_CHECK_EQ(op.y.elements(), op.x.elements());
  with_compute_type(op.y.dtype, [&]<typename T>(std::type_identity<T>) {
    const GateRowsBody<T> body{
        op.x.as<T>(), op.logit.as<T>(), op.y.as<T>(), C,
        may_load_packs({op.x.data, op.y.data}, static_cast<std::size_t>(C) * sizeof(T))};
    launch_map<kPackOf<T>>(launcher, "gate_rows", R, C, body);
  });
}

// A block handles a row: each thread adds some of its products in order, then block.sum() adds the
// threads' sums.
template <typename T>
struct GateRowsBackwardKernel {
  const T* x;
  const T* logit;
  const T* dy;
  T* dx;
  T* dlogit;
  std::int64_t C;

  static constexpr int kThreads = 128;

  template <typename Block>
  TERRACE_KERNEL void operator()(Block& block) const {
    const std::int64_t row = block.index();
    const float share = gate_share(logit[row]);
    typename Block::template PerThread<float> sums;
    block.for_each_thread([&](int t) {
      float sum = 0;
      for (std::int64_t at = row * C + t; at < (row + 1) * C; at += kThreads) {
        const float gradient = widened(dy[at]);
        sum += gradient * widened(x[at]);
        dx[at] = round_to<T>(share * gradient);
      }
      sums[t] = sum;
    });
    const float total = block.sum(sums);
    block.for_each_thread([&](int t) {
      if (t == 0) dlogit[row] = round_to<T>(share * (1.0F - share) * total);
    });
  }
};

template <typename Launcher>
void gate_rows_backward(Launcher& launcher, const GateRowsBackward& op) {
  const std::int64_t R = op.x.shape[0];
  TERRACE_CHECK_EQ(op.logit.elements(), R);
  TERRACE_CHECK_EQ(op.dlogit.elements(), R);
  TERRACE_CHECK_EQ(op.dy.elements(), op.x.elements());
  TERRACE_CHECK_EQ(op.dx.elements(), op.x.elements());
  with_compute_type(op.dx.dtype, [&]<typename T>(std::type_identity<T>) {
    using Kernel = GateRowsBackwardKernel<T>;
    const Kernel kernel{op.x.as<T>(),  op.logit.as<T>(),  op.dy.as<T>(),
                        op.dx.as<T>(), op.dlogit.as<T>(), op.x.elements() / R};
    launcher.template launch<Kernel::kThreads>("gate_rows_backward", kernel, R);
  });
}

}  // namespace terrace::shared
