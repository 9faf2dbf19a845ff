#include "kernels/cpu/cpu_head_loss.h"

#include <algorithm>
#include <cmath>

#include "base/check.h"
#include "kernels/cpu/cpu_softmax.h"
#include "kernels/cpu/head_chunks.h"
#include "kernels/cpu/streamed_head_loss.h"
#include "kernels/norm_tree.h"

// Letters: R rows, V vocabulary, C width.
namespace terrace {
namespace {

class HeadRun {
 public:
  HeadRun(const KernelContext& context, const HeadLoss& op)
      : context_(context), op_(op), chunks_(context, op), shape_(chunks_.shape()) {}

  void run() {
    for (std::int64_t index = 0; index < shape_.chunks(); ++index) {
      const std::int64_t first = index * shape_.chunk;
      const std::int64_t rows = shape_.rows_of(index);
      chunks_.compute_logits(first, rows);
      if (!op_.logits.empty()) copy_logits(first, rows);
      if (!op_.target.empty()) compute_losses(first, rows);
      if (!op_.dweight.empty()) chunks_.add_weight_gradient(first, rows);
      if (!op_.dh.empty()) chunks_.compute_input_gradient(first, rows);
    }
    chunks_.join_weight_gradient();
    if (op_.target.empty()) return;
    *op_.loss_sum = tree_sum({chunks_.losses(), static_cast<std::size_t>(shape_.R)});
  }

 private:
  void copy_logits(std::int64_t first, std::int64_t rows) const {
    float* target = op_.logits.as<float>() + first * shape_.V;
    context_.workers->parallel_for(rows, [&](std::int64_t row, int) {
      std::copy_n(chunks_.logits_row(row), shape_.V, target + row * shape_.V);
    });
  }

  // Returns the row's loss; if gradients are wanted, sets dlogits = gradient_scale * (softmax -
  // [target]) * the slope of the logit.
  double loss_of_row(std::int64_t row, std::int32_t target) const {
    if (target < 0) {
      if (!op_.dh.empty()) chunks_.clear_dlogits(row);
      return 0.0;
    }
    TERRACE_CHECK_LT(target, shape_.V);
    float* logits = chunks_.logits_row(row);
    const double target_logit = logits[target];
    const bool capped = chunks_.map().cap > 0.0F;
    const ExpRow exps = capped ? sum_row(logits, shape_.V) : exponentiate_row(logits, shape_.V);
    if (!op_.dh.empty()) {
      const double scale = static_cast<double>(op_.gradient_scale) * op_.logit_scale;
      const double factor = scale / exps.sum;
      const double at_target = capped ? capped_at_target(exps, factor, target_logit)
                                      : factor * (static_cast<double>(logits[target]) - exps.sum);
      if (capped) {
        chunks_.set_capped_dlogits(row, exps.max, static_cast<float>(factor));
      } else {
        chunks_.set_dlogits(row, static_cast<float>(factor));
      }
      chunks_.set_dlogit(row, target, static_cast<float>(at_target));
    }
    return static_cast<double>(exps.max) - target_logit + std::log(exps.sum);
  }

  double capped_at_target(const ExpRow& exps, double factor, double target_logit) const {
    const double exponential = std::exp(target_logit - static_cast<double>(exps.max));
    return factor * (exponential - exps.sum) * chunks_.map().slope(target_logit);
  }

  void compute_losses(std::int64_t first, std::int64_t rows) const {
    const std::int32_t* targets = op_.target.as<std::int32_t>() + first;
    double* losses = chunks_.losses() + first;
    context_.workers->parallel_for(
        rows, [&](std::int64_t row, int) { losses[row] = loss_of_row(row, targets[row]); });
  }

  const KernelContext& context_;
  const HeadLoss& op_;
  HeadChunks chunks_;
  const HeadShape& shape_;
};

}  // namespace

void cpu_head_loss(const KernelContext& context, const HeadLoss& op) {
  TERRACE_CHECK(!op.target.empty() || op.dh.empty());
  TERRACE_CHECK(op.target.empty() || op.loss_sum != nullptr);
  TERRACE_CHECK(op.dweight.empty() || !op.dh.empty());
  TERRACE_CHECK(op.h.dtype == op.weight.dtype);
  if (streams_head_loss(op)) return streamed_head_loss(context, op);
  HeadRun(context, op).run();
}

std::size_t cpu_head_loss_workspace(const HeadLoss& op, int workers) {
  if (streams_head_loss(op)) return streamed_head_loss_workspace(op, workers);
  return HeadChunks::workspace_bytes(op, workers);
}

}  // namespace terrace
