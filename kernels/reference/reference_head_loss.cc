#include <algorithm>
#include <cmath>
#include <span>

#include "kernels/head_chunk.h"
#include "kernels/norm_tree.h"
#include "kernels/reference/reference_element.h"
#include "kernels/reference/reference_logit.h"
#include "kernels/reference/reference_ops.h"

namespace terrace::reference {
namespace {

struct HeadShape {
  std::int64_t R, V, C, chunk;
};

HeadShape shape_of(const HeadLoss& op) {
  const std::int64_t V = op.weight.shape[0];
  const std::int64_t C = op.weight.shape[1];
  const std::int64_t R = op.h.elements() / C;
  return {R, V, C, std::min(R, head_chunk_rows(V))};
}

template <typename T>
struct HeadWorkspace {
  std::span<double> losses;    // [R]
  std::span<Wide<T>> logits;   // [chunk, V], turned into their gradients
  std::span<Wide<T>> dweight;  // [V, C], of the micro-batch so far
};

template <typename T>
void logits_of_row(const HeadLoss& op, const HeadShape& s, std::int64_t r,
                   std::span<Wide<T>> logits) {
  const T* h = op.h.as<T>() + r * s.C;
  const T* weight = op.weight.as<T>();
  for (std::int64_t v = 0; v < s.V; ++v) {
    Wide<T> sum = 0;
    for (std::int64_t c = 0; c < s.C; ++c) sum += load(h[c]) * load(weight[v * s.C + c]);
    sum = logit_of(op, sum);
    logits[v] = sum;
    if (!op.logits.empty()) op.logits.as<Wide<T>>()[r * s.V + v] = sum;
  }
}

// Returns -log p(target), or 0 where the row is not counted. The logits become the gradient of the
// scaled loss.
template <typename W>
double loss_of_row(const HeadLoss& op, std::span<W> logits, std::int32_t target) {
  if (target < 0) {
    std::fill(logits.begin(), logits.end(), W{0});
    return 0.0;
  }
  TERRACE_CHECK_LT(static_cast<std::size_t>(target), logits.size());
  const W max = *std::max_element(logits.begin(), logits.end());
  const double distance = static_cast<double>(max) - static_cast<double>(logits[target]);
  W sum = 0;
  for (const W logit : logits) sum += std::exp(logit - max);
  for (std::size_t v = 0; v < logits.size(); ++v) {
    const W probability = std::exp(logits[v] - max) / sum;
    const W counted = v == static_cast<std::size_t>(target) ? probability - 1 : probability;
    logits[v] = static_cast<W>(op.gradient_scale) * counted * logit_slope(op, logits[v]);
  }
  return distance + std::log(static_cast<double>(sum));
}

template <typename T>
void gradients_of_chunk(const HeadLoss& op, const HeadShape& s, std::int64_t first,
                        const HeadWorkspace<T>& workspace) {
  const std::int64_t rows = std::min(s.chunk, s.R - first);
  const T* weight = op.weight.as<T>();
  const T* h = op.h.as<T>() + first * s.C;
  for (std::int64_t r = 0; r < rows; ++r) {
    for (std::int64_t c = 0; c < s.C; ++c) {
      Wide<T> sum = 0;
      for (std::int64_t v = 0; v < s.V; ++v) {
        sum += workspace.logits[r * s.V + v] * load(weight[v * s.C + c]);
      }
      op.dh.as<T>()[(first + r) * s.C + c] = round_to<T>(sum);
    }
  }
  if (op.dweight.empty()) return;
  for (std::int64_t v = 0; v < s.V; ++v) {
    for (std::int64_t c = 0; c < s.C; ++c) {
      Wide<T> sum = 0;
      for (std::int64_t r = 0; r < rows; ++r) {
        sum += workspace.logits[r * s.V + v] * load(h[r * s.C + c]);
      }
      Wide<T>& total = workspace.dweight[v * s.C + c];
      total = first == 0 ? sum : total + sum;
    }
  }
}

template <typename T>
void run(const KernelContext& context, const HeadLoss& op) {
  using W = Wide<T>;
  const HeadShape s = shape_of(op);
  WorkspaceCutter cutter(context.workspace);
  HeadWorkspace<T> workspace;
  workspace.losses = cutter.take<double>(s.R);
  workspace.logits = cutter.take<W>(s.chunk * s.V);
  if (!op.dweight.empty()) workspace.dweight = cutter.take<W>(s.V * s.C);

  for (std::int64_t first = 0; first < s.R; first += s.chunk) {
    for (std::int64_t r = first; r < std::min(s.R, first + s.chunk); ++r) {
      const std::span<W> logits = workspace.logits.subspan((r - first) * s.V, s.V);
      logits_of_row<T>(op, s, r, logits);
      if (op.target.empty()) continue;
      workspace.losses[r] = loss_of_row<W>(op, logits, op.target.as<std::int32_t>()[r]);
    }
    if (!op.dh.empty()) gradients_of_chunk<T>(op, s, first, workspace);
  }
  if (!op.target.empty()) *op.loss_sum = tree_sum(workspace.losses);
  if (op.dweight.empty()) return;
  for (std::int64_t i = 0; i < s.V * s.C; ++i) {
    join_gradient(op.dweight.as<W>()[i], workspace.dweight[i], op.mode);
  }
}

}  // namespace

void head_loss(const KernelContext& context, const HeadLoss& op) {
  TERRACE_CHECK(!op.target.empty() || op.dh.empty());
  TERRACE_CHECK(op.target.empty() || op.loss_sum != nullptr);
  with_compute_type(op.h.dtype, [&]<typename T>(std::type_identity<T>) { run<T>(context, op); });
}

std::size_t head_loss_workspace(const HeadLoss& op, int) {
  const HeadShape s = shape_of(op);
  return WorkspaceCutter::padded_bytes(s.R + s.chunk * s.V + (op.dweight.empty() ? 0 : s.V * s.C));
}

}  // namespace terrace::reference
