// The part of UnitCompute for units that tensor-parallel ranks share: one function for each phase,
// between which they exchange. Letters: unit_compute.h.

#include "runtime/model/unit_compute.h"

namespace terrace {

TensorView UnitCompute::own_rows(std::byte* data) const {
  return view(data, type_, batch_.own_rows(), config_.width);
}

TensorView UnitCompute::all_rows(std::byte* gathered, const TensorView& own) const {
  return gathered == nullptr ? own : rows(gathered, config_.width);
}

// The biases of products that are summed over the ranks are the first rank's to add.
BlockTensors UnitCompute::block_weights(std::int64_t unit, const UnitMemory& memory) const {
  BlockTensors weights = block_tensors(config_, layout_.at(unit), memory.parameters, type_);
  if (split_.rank != 0) weights.projection_bias = weights.down_bias = TensorView{};
  return weights;
}

void UnitCompute::embedding_phase(const KernelContext& context, UnitPhase phase,
                                  const UnitMemory& memory) const {
  const EmbeddingTensors weights =
      embedding_tensors(config_, layout_.front(), memory.parameters, type_);
  if (phase == UnitPhase::kPositions) {
    const std::int64_t first_row = split_.shares_rows ? split_.rank * batch_.own_rows() : 0;
    return kernels_.add_positions(
        context, {own_rows(memory.hidden_out), weights.positions, batch_.positions, first_row});
  }
  TERRACE_CHECK(phase == UnitPhase::kLookup);
  kernels_.embedding_forward(context,
                             {tokens(memory.tokens), weights.tokens, TensorView{},
                              rows(memory.partial, config_.width), batch_.positions, first_token_});
}

void UnitCompute::forward_phase(const KernelContext& context, std::int64_t unit, UnitPhase phase,
                                const UnitMemory& memory) const {
  const BlockTensors weights = block_weights(unit, memory);
  const SavedTensors saved = saved_tensors(config_, batch_, type_, memory.saved);
  switch (phase) {
    case UnitPhase::kNorm1:
      return norm_forward(context, own_rows(memory.hidden), weights.norm1, weights.norm1_bias,
                          saved.normed1, saved.mean1, saved.rstd1);
    case UnitPhase::kAttention:
      return attend(context, weights, saved, all_rows(memory.gathered, saved.normed1),
                    memory.constants, rows(memory.partial, config_.width));
    case UnitPhase::kNorm2:
      kernels_.add(context, {own_rows(memory.hidden), own_rows(memory.reduced), saved.middle});
      return norm_forward(context, saved.middle, weights.norm2, weights.norm2_bias, saved.normed2,
                          saved.mean2, saved.rstd2);
    case UnitPhase::kMlp:
      return feed_forward(context, weights, saved, all_rows(memory.gathered, saved.normed2),
                          rows(memory.partial, config_.width));
    case UnitPhase::kResidual:
      return kernels_.add(context,
                          {saved.middle, own_rows(memory.reduced), own_rows(memory.hidden_out)});
    default:
      TERRACE_CHECK(false);
  }
}

void UnitCompute::backward_phase(const KernelContext& context, std::int64_t unit, UnitPhase phase,
                                 const UnitMemory& memory) const {
  const Products products = products_of(unit, memory);
  const auto& [weights, gradients, saved, mode, table] = products;
  KernelContext inner = context;
  const Scratch scratch = carve_scratch(inner);
  const TensorView partial = rows(memory.partial, config_.width);
  switch (phase) {
    case UnitPhase::kMlp:
      if (mode == GradientMode::kAssign) clear_padding(inner, unit, memory.gradient);
      return feed_forward_backward(inner, products, scratch,
                                   all_rows(memory.gathered, saved.normed2),
                                   rows(memory.hidden_gradient, config_.width), partial);
    case UnitPhase::kNorm2:
      return norm_backward(
          inner, {own_rows(memory.reduced), saved.middle, weights.norm2, saved.mean2, saved.rstd2,
                  own_rows(memory.hidden_gradient), own_rows(memory.hidden_gradient_out),
                  gradients.norm2, gradients.norm2_bias, mode});
    case UnitPhase::kAttention:
      return attend_backward(inner, products, scratch, all_rows(memory.gathered, saved.normed1),
                             rows(memory.hidden_gradient, config_.width), partial);
    case UnitPhase::kNorm1:
      return norm_backward(inner, {own_rows(memory.reduced), own_rows(memory.hidden), weights.norm1,
                                   saved.mean1, saved.rstd1, own_rows(memory.hidden_gradient),
                                   own_rows(memory.hidden_gradient_out), gradients.norm1,
                                   gradients.norm1_bias, mode});
    default:
      TERRACE_CHECK(false);
  }
}

UnitCompute::HeadSaved UnitCompute::head_saved(TensorCarver& carver) const {
  HeadSaved saved;
  saved.normed = carver.take(type_, batch_.own_rows(), config_.width);
  saved.mean = carver.take(DType::kF32, batch_.own_rows());
  saved.rstd = carver.take(DType::kF32, batch_.own_rows());
  return saved;
}

void UnitCompute::head_phase(const KernelContext& context, UnitPhase phase,
                             const UnitMemory& memory) const {
  const std::int64_t unit = static_cast<std::int64_t>(layout_.size()) - 1;
  const bool backward = memory.gradient != nullptr;
  const HeadTensors weights = head_weights(memory);
  const HeadTensors gradients = backward ? head_gradients(memory) : HeadTensors{};
  TensorCarver carver(memory.saved);
  const HeadSaved saved = head_saved(carver);
  const TensorView normed = all_rows(memory.gathered, saved.normed);
  const auto sums = [this](std::byte* data, std::int64_t parts) {
    return view(data, DType::kF32, parts, batch_.rows(), kLogitSums);
  };
  switch (phase) {
    case UnitPhase::kHeadNorm:
      return norm_forward(context, own_rows(memory.hidden), weights.norm, weights.norm_bias,
                          saved.normed, saved.mean, saved.rstd);
    case UnitPhase::kHeadSums:
      return kernels_.head_sums(context, {normed, weights.weight, targets(memory.tokens),
                                          sums(memory.row_sums, 1), first_token_});
    case UnitPhase::kHeadLoss: {
      HeadPartLoss loss;
      loss.h = normed;
      loss.weight = weights.weight;
      loss.target = targets(memory.tokens);
      loss.sums = sums(memory.all_row_sums, split_.ranks);
      loss.first_token = first_token_;
      loss.gradient_scale = memory.gradient_scale;
      loss.loss_sum = memory.loss_sum;
      if (backward) {
        loss.dh = rows(memory.partial, config_.width);
        loss.dweight = gradients.weight;
        loss.mode = config_.tied ? memory.tied_gradient_mode : memory.gradient_mode;
        if (memory.gradient_mode == GradientMode::kAssign) {
          clear_padding(context, unit, memory.gradient);
        }
      }
      return kernels_.head_part_loss(context, loss);
    }
    case UnitPhase::kHeadNormBackward:
      return norm_backward(
          context, {own_rows(memory.reduced), own_rows(memory.hidden), weights.norm, saved.mean,
                    saved.rstd, TensorView{}, own_rows(memory.hidden_gradient_out), gradients.norm,
                    gradients.norm_bias, memory.gradient_mode});
    default:
      TERRACE_CHECK(false);
  }
}

}  // namespace terrace
