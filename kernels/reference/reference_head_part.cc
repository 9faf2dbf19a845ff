#include <algorithm>
#include <cmath>
#include <span>

#include "kernels/norm_tree.h"
#include "kernels/reference/reference_element.h"
#include "kernels/reference/reference_logit.h"
#include "kernels/reference/reference_ops.h"

namespace terrace::reference {
namespace {

template <typename T, typename Op>
void logits_of_row(const Op& op, std::int64_t r, std::span<Wide<T>> logits) {
  const std::int64_t C = op.weight.shape[1];
  const T* h = op.h.template as<T>() + r * C;
  const T* weight = op.weight.template as<T>();
  for (std::size_t v = 0; v < logits.size(); ++v) {
    Wide<T> sum = 0;
    for (std::int64_t c = 0; c < C; ++c) {
      sum += load(h[c]) * load(weight[static_cast<std::int64_t>(v) * C + c]);
    }
    logits[v] = logit_of(op, sum);
  }
}

template <typename T>
void sums_of_rows(const KernelContext& context, const HeadSums& op) {
  using W = Wide<T>;
  const std::int64_t V = op.weight.shape[0];
  WorkspaceCutter cutter(context.workspace);
  const std::span<W> logits = cutter.take<W>(V);
  for (std::int64_t r = 0; r < op.target.elements(); ++r) {
    W* const sums = op.sums.as<W>() + r * kLogitSums;
    std::fill_n(sums, kLogitSums, W{0});
    const std::int64_t target = op.target.as<std::int32_t>()[r] - op.first_token;
    if (op.target.as<std::int32_t>()[r] < 0) continue;
    logits_of_row<T>(op, r, logits);
    sums[0] = *std::max_element(logits.begin(), logits.end());
    for (const W logit : logits) sums[1] += std::exp(logit - sums[0]);
    if (target >= 0 && target < V) sums[2] = logits[static_cast<std::size_t>(target)];
  }
}

// The sums of all parts: the largest logit, the sum of exponentials relative to it, the target's
// logit.
template <typename W>
struct WholeSums {
  W max = 0, sum = 0, target = 0;
};

template <typename W>
WholeSums<W> whole_sums(const HeadPartLoss& op, std::int64_t r) {
  const std::int64_t R = op.target.elements();
  const std::int64_t parts = op.sums.elements() / (R * kLogitSums);
  const auto part = [&](std::int64_t p) { return op.sums.as<W>() + (p * R + r) * kLogitSums; };
  WholeSums<W> whole{part(0)[0], 0, 0};
  for (std::int64_t p = 1; p < parts; ++p) whole.max = std::max(whole.max, part(p)[0]);
  for (std::int64_t p = 0; p < parts; ++p) {
    whole.sum += part(p)[1] * std::exp(part(p)[0] - whole.max);
    whole.target += part(p)[2];
  }
  return whole;
}

template <typename T>
void add_gradients_of_row(const HeadPartLoss& op, std::int64_t r, std::span<const Wide<T>> dlogits,
                          std::span<Wide<T>> dweight) {
  using W = Wide<T>;
  const std::int64_t C = op.weight.shape[1];
  for (std::int64_t c = 0; c < C; ++c) {
    W sum = 0;
    for (std::size_t v = 0; v < dlogits.size(); ++v) {
      const std::int64_t at = static_cast<std::int64_t>(v) * C + c;
      sum += dlogits[v] * load(op.weight.as<T>()[at]);
      if (dweight.empty()) continue;
      dweight[static_cast<std::size_t>(at)] += dlogits[v] * load(op.h.as<T>()[r * C + c]);
    }
    op.dh.as<T>()[r * C + c] = round_to<T>(sum);
  }
}

template <typename T>
void loss_of_part(const KernelContext& context, const HeadPartLoss& op) {
  using W = Wide<T>;
  const std::int64_t R = op.target.elements();
  WorkspaceCutter cutter(context.workspace);
  const std::span<double> losses = cutter.take<double>(R);
  const bool backward = !op.dh.empty();
  const std::int64_t V = backward ? op.weight.shape[0] : 0;
  const std::span<W> logits = cutter.take<W>(V);
  const std::span<W> dweight = cutter.take<W>(op.dweight.empty() ? 0 : V * op.weight.shape[1]);
  std::ranges::fill(dweight, W{0});
  for (std::int64_t r = 0; r < R; ++r) {
    const std::int32_t target = op.target.as<std::int32_t>()[r];
    const WholeSums<W> whole = whole_sums<W>(op, r);
    losses[static_cast<std::size_t>(r)] = target < 0 ? 0
                                                     : static_cast<double>(whole.max) -
                                                           static_cast<double>(whole.target) +
                                                           std::log(static_cast<double>(whole.sum));
    if (!backward) continue;
    logits_of_row<T>(op, r, logits);
    for (std::int64_t v = 0; v < V; ++v) {
      W& logit = logits[static_cast<std::size_t>(v)];
      const W probability = std::exp(logit - whole.max) / whole.sum;
      const W counted = v + op.first_token == target ? probability - 1 : probability;
      const W gradient = static_cast<W>(op.gradient_scale) * counted * logit_slope(op, logit);
      logit = target < 0 ? W{0} : gradient;
    }
    add_gradients_of_row<T>(op, r, logits, dweight);
  }
  *op.loss_sum = tree_sum(losses);
  for (std::size_t i = 0; i < dweight.size(); ++i) {
    join_gradient(op.dweight.as<W>()[i], dweight[i], op.mode);
  }
}

}  // namespace

void head_sums(const KernelContext& context, const HeadSums& op) {
  with_compute_type(op.h.dtype,
                    [&]<typename T>(std::type_identity<T>) { sums_of_rows<T>(context, op); });
}

void head_part_loss(const KernelContext& context, const HeadPartLoss& op) {
  with_compute_type(op.h.dtype,
                    [&]<typename T>(std::type_identity<T>) { loss_of_part<T>(context, op); });
}

std::size_t head_sums_workspace(const HeadSums& op, int) {
  return WorkspaceCutter::padded_bytes(op.weight.shape[0]);
}

std::size_t head_part_loss_workspace(const HeadPartLoss& op, int) {
  const std::int64_t gradients = op.dh.empty() ? 0 : op.weight.shape[0] * (1 + op.weight.shape[1]);
  return WorkspaceCutter::padded_bytes(op.target.elements() + gradients);
}

}  // namespace terrace::reference
