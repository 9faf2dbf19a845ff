// The part of UnitCompute that counts instead of computing: sizes, workspace, floating-point
// operations.

#include <algorithm>

#include "runtime/model/tensor_carver.h"
#include "runtime/model/unit_compute.h"

namespace terrace {
namespace {

// Memory of views whose shapes alone are looked at, and whether they are empty.
std::byte* not_empty() { return reinterpret_cast<std::byte*>(std::uintptr_t{64}); }

// Workspace of a linear layer's three products.
std::size_t linear_workspace(const KernelTable& kernels, const TensorView& x,
                             const TensorView& weight, const TensorView& bias, const TensorView& y,
                             int workers) {
  TensorView dweight = weight;
  dweight.dtype = DType::kF32;
  TensorView dbias = bias;
  dbias.dtype = DType::kF32;
  std::size_t bytes = kernels.matmul_forward_workspace({x, weight, bias, y}, workers);
  bytes = std::max(bytes, kernels.matmul_backward_input_workspace({y, weight, x}, workers));
  for (const GradientMode mode : {GradientMode::kAssign, GradientMode::kAccumulate}) {
    bytes = std::max(
        bytes, kernels.matmul_backward_weight_workspace({y, x, dweight, dbias, mode}, workers));
  }
  return bytes;
}

double matmul_flops(const TensorView& weight, std::int64_t rows) {
  return 2.0 * static_cast<double>(weight.elements()) * static_cast<double>(rows);
}

}  // namespace

SavedTensors UnitCompute::saved_shapes() const {
  std::byte* const some = not_empty();
  SavedTensors tensors;
  tensors.normed1 = rows(some, config_.width);
  tensors.qkv = rows(some, qkv_columns(config_));
  tensors.attended = rows(some, config_.heads * config_.head_width);
  tensors.log_sum_exp = view(some, DType::kF32, batch_.sequences, config_.heads, batch_.positions);
  tensors.up = rows(some, up_columns(config_));
  tensors.activated = rows(some, config_.intermediate);
  return tensors;
}

UnitCompute::AttentionOps UnitCompute::attention_ops() const {
  const SavedTensors saved = saved_shapes();
  const AttentionShape shape = attention_shape();
  const float scale = attention_scale();
  return {{shape, saved.qkv, saved.attended, saved.log_sum_exp, scale},
          {shape, saved.qkv, saved.attended, saved.log_sum_exp, saved.attended, saved.qkv, scale}};
}

void UnitCompute::prepare(const KernelContext& context) const {
  if (config_.layers == 0 || kernels_.prepare_attention == nullptr) return;
  const AttentionOps ops = attention_ops();
  kernels_.prepare_attention(context, ops.forward, ops.backward);
}

std::size_t UnitCompute::kernel_workspace_bytes(std::int32_t micro_batches, int workers) const {
  const std::int64_t width = config_.width;
  const SavedTensors saved = saved_shapes();
  std::size_t bytes = std::max(kernels_.norm_backward_workspace(batch_.rows(), width, workers),
                               kernels_.norm_backward_workspace(batch_.own_rows(), width, workers));
  if (config_.layers > 0) {
    const BlockTensors block = block_tensors(config_, layout_.at(1), not_empty(), type_);
    const auto linear = [&](const TensorView& x, const TensorView& weight, const TensorView& bias,
                            const TensorView& y) {
      bytes = std::max(bytes, linear_workspace(kernels_, x, weight, bias, y, workers));
    };
    linear(saved.normed1, block.qkv, block.qkv_bias, saved.qkv);
    linear(saved.attended, block.projection, block.projection_bias, saved.normed1);
    linear(saved.normed1, block.up, block.up_bias, saved.up);
    linear(saved.activated, block.down, block.down_bias, saved.normed1);
  }
  const AttentionOps attention = attention_ops();
  bytes = std::max(bytes, kernels_.attention_forward_workspace(attention.forward, workers));
  bytes = std::max(bytes, kernels_.attention_backward_workspace(attention.backward, workers));
  return std::max(bytes, kernels_.embedding_backward_workspace(batch_.rows(), micro_batches,
                                                               vocabulary_part(), width, workers));
}

std::size_t UnitCompute::head_workspace_bytes(std::int32_t micro_batches, int workers) const {
  std::byte* const some = not_empty();
  HeadLoss loss;
  loss.h = rows(some, config_.width);
  loss.weight = view(some, type_, config_.vocabulary, config_.width);
  loss.target = view(some, DType::kI32, batch_.rows());
  loss.dh = loss.h;
  loss.dweight = view(some, DType::kF32, config_.vocabulary, config_.width);
  loss.mode = micro_batches > 1 ? GradientMode::kAccumulate : GradientMode::kAssign;
  return kernels_.head_loss_workspace(loss, workers);
}

// The last rank's part of the vocabulary may be smaller. All ranks have the same workspace.
std::size_t UnitCompute::head_part_workspace_bytes(std::int32_t micro_batches, int workers) const {
  std::byte* const some = not_empty();
  std::size_t bytes = 0;
  for (const std::int64_t part :
       {vocabulary_part(), vocabulary_ - (split_.ranks - 1) * vocabulary_part()}) {
    HeadSums sums;
    sums.h = rows(some, config_.width);
    sums.weight = view(some, type_, part, config_.width);
    sums.target = view(some, DType::kI32, batch_.rows());
    HeadPartLoss loss;
    loss.h = sums.h;
    loss.weight = sums.weight;
    loss.target = sums.target;
    loss.dh = loss.h;
    loss.dweight = view(some, DType::kF32, part, config_.width);
    loss.mode = micro_batches > 1 ? GradientMode::kAccumulate : GradientMode::kAssign;
    bytes = std::max({bytes, kernels_.head_sums_workspace(sums, workers),
                      kernels_.head_part_loss_workspace(loss, workers)});
  }
  return bytes;
}

std::size_t UnitCompute::workspace_bytes(std::int32_t micro_batches, int workers) const {
  TensorCarver block = TensorCarver::counting();
  {
    KernelContext counting;
    const Scratch scratch = carve_scratch(counting);
    block.take(type_, scratch.wide.shape[0], scratch.wide.shape[1]);
    block.take(type_, scratch.narrow.shape[0], scratch.narrow.shape[1]);
    block.take(type_, batch_.rows(), config_.width);
  }
  TensorCarver head = TensorCarver::counting();
  head.take(type_, batch_.rows(), config_.width);
  head.take(type_, batch_.rows(), config_.width);
  head.take(DType::kF32, batch_.rows());
  head.take(DType::kF32, batch_.rows());
  const std::size_t head_bytes =
      head.used_bytes() + (split_.ranks > 1 ? head_part_workspace_bytes(micro_batches, workers)
                                            : head_workspace_bytes(micro_batches, workers));
  const std::size_t inner = kernel_workspace_bytes(micro_batches, workers);
  return round_up(
      std::max(block.used_bytes() + inner, std::max(head_bytes, head.used_bytes() + inner)), 4096);
}

TensorSharing UnitCompute::tensor_sharing() const {
  TensorSharing sharing;
  sharing.ranks = split_.ranks;
  sharing.rank = split_.rank;
  sharing.shares_rows = split_.shares_rows;
  if (split_.ranks == 1) return sharing;
  sharing.has_positions = config_.family == ModelFamily::kGpt2;
  sharing.rows_bytes = rows(nullptr, config_.width).size_bytes();
  sharing.row_sums_bytes = static_cast<std::size_t>(batch_.rows() * kLogitSums) * sizeof(float);
  TensorCarver carver = TensorCarver::counting();
  head_saved(carver);
  sharing.head_saved_bytes = carver.used_bytes();
  // The carver needs memory to tell where things are; none of it is touched.
  std::byte* const base = reinterpret_cast<std::byte*>(std::uintptr_t{64});
  const SavedTensors saved =
      saved_tensors(config_, batch_, type_, {base, saved_bytes(config_, batch_, type_)});
  sharing.normed1_offset = static_cast<std::size_t>(saved.normed1.data - base);
  sharing.normed2_offset = static_cast<std::size_t>(saved.normed2.data - base);
  return sharing;
}

StepModel UnitCompute::step_model(std::int32_t micro_batches, int workers) const {
  const std::int64_t rows = batch_.rows();
  StepModel model;
  model.tied = config_.tied;
  model.compute_type = type_;
  model.hidden_bytes = own_rows(nullptr).size_bytes();
  model.tokens_bytes = tokens_bytes();
  model.constants_bytes = constants().size() * sizeof(float);
  model.workspace_bytes = workspace_bytes(micro_batches, workers);
  model.tensor = tensor_sharing();
  const double attention = 2.0 * static_cast<double>(rows * batch_.positions) *
                           static_cast<double>(config_.heads * config_.head_width);
  for (const UnitLayout& layout : layout_) {
    UnitModel unit;
    unit.kind = layout.kind;
    unit.padded_elements = layout.padded_elements;
    unit.replicated = layout.replicated;
    unit.norms = layout.norms;
    if (layout.kind == UnitKind::kBlock) {
      const BlockTensors block = block_tensors(config_, layout, nullptr, type_);
      unit.saved_bytes = saved_bytes(config_, batch_, type_);
      unit.forward_flops = attention;
      for (const TensorView* weight : {&block.qkv, &block.projection, &block.up, &block.down}) {
        unit.forward_flops += matmul_flops(*weight, rows);
      }
      unit.attention_flops =
          attention + matmul_flops(block.qkv, rows) + matmul_flops(block.projection, rows);
      unit.backward_flops = 2 * unit.forward_flops;
    } else if (layout.kind == UnitKind::kHead) {
      unit.backward_flops =
          6.0 * static_cast<double>(rows) * static_cast<double>(vocabulary_part() * config_.width);
    }
    model.units.push_back(unit);
  }
  return model;
}

}  // namespace terrace
