#include "runtime/bench/step_light.h"

namespace terrace {

StepFlops flops_of_step(const Program& program, const ModelConfig& model, const BatchShape& batch) {
  StepFlops flops;
  for (const Op& op : program.ops) {
    (op.kind == OpKind::kRecompute ? flops.recomputed : flops.necessary) += op.cost.flops;
  }
  // Two products in the forward and four in the backward, of half a square each.
  const double half_squares = 3 * 2.0 * static_cast<double>(batch.rows() * batch.positions) *
                              static_cast<double>(model.heads * model.head_width) *
                              static_cast<double>(model.layers * program.micro_batches);
  flops.with_whole_squares = flops.necessary + half_squares;
  return flops;
}

double tokens_at_light(const StepFlops& flops, double tokens, double flops_per_s) {
  return tokens * flops_per_s / flops.necessary;
}

}  // namespace terrace
