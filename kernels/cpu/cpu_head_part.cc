#include "kernels/cpu/cpu_head_part.h"

#include <algorithm>
#include <cmath>

#include "base/check.h"
#include "kernels/cpu/cpu_softmax.h"
#include "kernels/cpu/head_chunks.h"
#include "kernels/cpu/streamed_head_loss.h"
#include "kernels/head_products.h"
#include "kernels/norm_tree.h"

// Letters: R rows, V the part's vocabulary, C width, N parts.
namespace terrace {
namespace {

std::size_t products_workspace(const HeadLoss& products, int workers) {
  return streams_head_loss(products) ? streamed_head_loss_workspace(products, workers)
                                     : HeadChunks::workspace_bytes(products, workers);
}

// The sums of a row over the whole vocabulary.
struct RowSums {
  double max = 0;
  double sum = 0;
  double target = 0;  // the target's logit
};

RowSums sums_of_row(const LogitSums* sums, std::int64_t rows, std::int64_t parts,
                    std::int64_t row) {
  RowSums whole{sums[row].max, 0, 0};
  for (std::int64_t p = 1; p < parts; ++p) {
    whole.max = std::max(whole.max, static_cast<double>(sums[p * rows + row].max));
  }
  for (std::int64_t p = 0; p < parts; ++p) {
    const LogitSums& part = sums[p * rows + row];
    whole.sum += part.sum * std::exp(static_cast<double>(part.max) - whole.max);
    whole.target += part.target;
  }
  return whole;
}

class PartLoss {
 public:
  PartLoss(const KernelContext& context, const HeadPartLoss& op)
      : context_(context),
        op_(op),
        rows_(op.target.elements()),
        parts_(op.sums.elements() / (rows_ * kLogitSums)),
        map_(products_of(op)),
        scale_(static_cast<double>(op.gradient_scale) * op.logit_scale),
        sums_(reinterpret_cast<const LogitSums*>(op.sums.as<const float>())) {}

  // Computes the losses, for which the sums are enough, and the gradients if they are wanted.
  void run() const {
    double* losses = region_at<double>(context_.workspace, 0, rows_);
    context_.workers->parallel_for(rows_, [&](std::int64_t row, int) {
      losses[row] = 0;
      if (target_of(row) < 0) return;
      const RowSums whole = sums_of_row(sums_, rows_, parts_, row);
      losses[row] = whole.max - whole.target + std::log(whole.sum);
    });
    *op_.loss_sum = tree_sum({losses, static_cast<std::size_t>(rows_)});
    if (!op_.dh.empty()) make_gradients();
  }

 private:
  std::int32_t target_of(std::int64_t row) const {
    return op_.target.as<const std::int32_t>()[row];
  }

  void make_gradients() const {
    const HeadLoss products = products_of(op_);
    if (streams_head_loss(products)) {
      return streamed_head_gradients(context_, products,
                                     [this](std::int64_t row) { return gradient_of(row); });
    }
    const HeadChunks chunks(context_, products);
    const HeadShape& shape = chunks.shape();
    for (std::int64_t index = 0; index < shape.chunks(); ++index) {
      const std::int64_t first = index * shape.chunk;
      const std::int64_t rows = shape.rows_of(index);
      chunks.compute_logits(first, rows);
      context_.workers->parallel_for(
          rows, [&](std::int64_t row, int) { set_dlogits(chunks, first, row); });
      if (!op_.dweight.empty()) chunks.add_weight_gradient(first, rows);
      chunks.compute_input_gradient(first, rows);
    }
    chunks.join_weight_gradient();
  }

  // Returns how the row's logits become gradients. A target of another part is placed behind the
  // last column.
  RowGradient gradient_of(std::int64_t row) const {
    if (target_of(row) < 0) return {};
    const std::int64_t V = op_.weight.shape[0];
    const RowSums whole = sums_of_row(sums_, rows_, parts_, row);
    const double at_target = scale_ * (std::exp(whole.target - whole.max) / whole.sum - 1);
    const std::int64_t target = target_of(row) - op_.first_token;
    const bool is_here = target >= 0 && target < V;
    return {.max = static_cast<float>(whole.max),
            .factor = static_cast<float>(scale_ / whole.sum),
            .at_target = static_cast<float>(at_target * map_.slope(whole.target)),
            .target = static_cast<std::int32_t>(is_here ? target : V)};
  }

  // Sets dlogits = gradient_scale * (softmax over all parts - [target]) * the slope of the logit.
  void set_dlogits(const HeadChunks& chunks, std::int64_t first, std::int64_t row) const {
    const std::int64_t V = chunks.shape().V;
    if (target_of(first + row) < 0) return chunks.clear_dlogits(row);
    if (map_.cap > 0.0F) return set_capped_dlogits(chunks, first, row);
    const RowSums whole = sums_of_row(sums_, rows_, parts_, first + row);
    float* logits = chunks.logits_row(row);
    const ExpRow exps = exponentiate_row(logits, V);
    const double factor = scale_ * std::exp(static_cast<double>(exps.max) - whole.max) / whole.sum;
    const std::int64_t target = target_of(first + row) - op_.first_token;
    const bool is_here = target >= 0 && target < V;
    const double at_target = is_here ? factor * static_cast<double>(logits[target]) - scale_ : 0.0;
    chunks.set_dlogits(row, static_cast<float>(factor));
    if (is_here) chunks.set_dlogit(row, target, static_cast<float>(at_target));
  }

  void set_capped_dlogits(const HeadChunks& chunks, std::int64_t first, std::int64_t row) const {
    const RowGradient gradient = gradient_of(first + row);
    chunks.set_capped_dlogits(row, gradient.max, gradient.factor);
    if (gradient.target == chunks.shape().V) return;
    chunks.set_dlogit(row, gradient.target, gradient.at_target);
  }

  const KernelContext& context_;
  const HeadPartLoss& op_;
  std::int64_t rows_, parts_;
  LogitMap map_;
  double scale_;  // of the gradients of logits, and of the logits
  const LogitSums* sums_;
};

}  // namespace

void cpu_head_sums(const KernelContext& context, const HeadSums& op) {
  TERRACE_CHECK(op.h.dtype == op.weight.dtype);
  TERRACE_CHECK_EQ(op.sums.elements(), op.target.elements() * kLogitSums);
  auto* const sums = reinterpret_cast<LogitSums*>(op.sums.as<float>());
  const HeadLoss products = products_of(op);
  if (streams_head_loss(products)) {
    return streamed_head_sums(context, products, op.first_token, sums);
  }
  const HeadChunks chunks(context, products);
  const HeadShape& shape = chunks.shape();
  const auto* const targets = op.target.as<const std::int32_t>();
  for (std::int64_t index = 0; index < shape.chunks(); ++index) {
    const std::int64_t first = index * shape.chunk;
    const std::int64_t rows = shape.rows_of(index);
    chunks.compute_logits(first, rows);
    context.workers->parallel_for(rows, [&](std::int64_t row, int) {
      LogitSums& out = sums[first + row];
      out = {};
      if (targets[first + row] < 0) return;
      float* logits = chunks.logits_row(row);
      const std::int64_t target = targets[first + row] - op.first_token;
      if (target >= 0 && target < shape.V) out.target = logits[target];
      const ExpRow exps = exponentiate_row(logits, shape.V);
      out.max = exps.max;
      out.sum = static_cast<float>(exps.sum);
    });
  }
}

void cpu_head_part_loss(const KernelContext& context, const HeadPartLoss& op) {
  TERRACE_CHECK(op.dh.empty() || op.h.dtype == op.weight.dtype);
  TERRACE_CHECK(op.dweight.empty() || !op.dh.empty());
  PartLoss(context, op).run();
}

std::size_t cpu_head_sums_workspace(const HeadSums& op, int workers) {
  return products_workspace(products_of(op), workers);
}

// The losses come first in the workspace, with or without gradients.
std::size_t cpu_head_part_loss_workspace(const HeadPartLoss& op, int workers) {
  const auto losses = static_cast<std::size_t>(op.target.elements()) * sizeof(double);
  if (op.dh.empty()) return losses;
  return std::max(losses, products_workspace(products_of(op), workers));
}

}  // namespace terrace
