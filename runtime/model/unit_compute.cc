#include "runtime/model/unit_compute.h"

#include <algorithm>
#include <cmath>

#include "runtime/model/rope_table.h"
#include "runtime/model/tensor_carver.h"

namespace terrace {
namespace {

// Wider than any tensor that a block's backward holds in it at once: see the two functions below.
std::int64_t wide_width(const ModelConfig& config) {
  return std::max(up_columns(config), qkv_columns(config));
}
std::int64_t narrow_width(const ModelConfig& config) {
  return std::max({config.intermediate, config.width, config.heads * config.head_width});
}

}  // namespace

UnitCompute::UnitCompute(const ModelConfig& config, std::vector<UnitLayout> layout,
                         DType compute_type, const BatchShape& batch, const KernelTable& kernels,
                         const TensorSplit& split)
    : config_(config_of_part(config, split)),
      layout_(std::move(layout)),
      type_(compute_type),
      batch_(batch),
      split_(split),
      vocabulary_(config.vocabulary),
      first_token_(first_token(config, split)),
      kernels_(kernels) {
  if (split.shares_rows) batch_.row_parts = split.ranks;
}

TensorView UnitCompute::rows(std::byte* data, std::int64_t columns) const {
  return view(data, type_, batch_.rows(), columns);
}

TensorView UnitCompute::tokens(std::byte* data) const {
  return view(data, DType::kI32, batch_.rows());
}

TensorView UnitCompute::targets(std::byte* data) const {
  return view(data + tokens_bytes() / 2, DType::kI32, batch_.rows());
}

std::size_t UnitCompute::tokens_bytes() const {
  return 2 * static_cast<std::size_t>(batch_.rows()) * size_of(DType::kI32);
}

AttentionShape UnitCompute::attention_shape() const {
  return {batch_.sequences, batch_.positions, config_.heads, config_.key_value_heads,
          config_.head_width};
}

float UnitCompute::attention_scale() const {
  return 1.0F / std::sqrt(static_cast<float>(config_.head_width));
}

// --- forward
// ---------------------------------------------------------------------------------------

void UnitCompute::norm_forward(const KernelContext& context, const TensorView& x,
                               const TensorView& weight, const TensorView& bias,
                               const TensorView& y, const TensorView& mean,
                               const TensorView& rstd) const {
  const float epsilon = config_.norm_epsilon;
  if (config_.family == ModelFamily::kGpt2) {
    kernels_.layer_norm_forward(context, {x, weight, bias, y, mean, rstd, epsilon});
  } else {
    kernels_.rms_norm_forward(context, {x, weight, y, rstd, epsilon});
  }
}

void UnitCompute::rotate(const KernelContext& context, const TensorView& qkv, std::byte* table,
                         bool inverse) const {
  if (config_.family == ModelFamily::kGpt2) return;
  Rope rope;
  rope.qkv = qkv;
  rope.table = view(table, DType::kF32, batch_.positions, config_.head_width);
  rope.sequence = batch_.positions;
  rope.head_width = config_.head_width;
  rope.heads = config_.heads + config_.key_value_heads;  // queries, then keys
  rope.inverse = inverse;
  kernels_.rope(context, rope);
}

void UnitCompute::embedding_forward(const KernelContext& context, const UnitMemory& memory) const {
  const EmbeddingTensors weights =
      embedding_tensors(config_, layout_.front(), memory.parameters, type_);
  kernels_.embedding_forward(context, {tokens(memory.tokens), weights.tokens, weights.positions,
                                       rows(memory.hidden_out, config_.width), batch_.positions});
}

void UnitCompute::attend(const KernelContext& context, const BlockTensors& weights,
                         const SavedTensors& saved, const TensorView& normed, std::byte* table,
                         const TensorView& out) const {
  kernels_.matmul_forward(context, {normed, weights.qkv, weights.qkv_bias, saved.qkv});
  rotate(context, saved.qkv, table, false);
  kernels_.attention_forward(context, {attention_shape(), saved.qkv, saved.attended,
                                       saved.log_sum_exp, attention_scale()});
  kernels_.matmul_forward(context,
                          {saved.attended, weights.projection, weights.projection_bias, out});
}

void UnitCompute::feed_forward(const KernelContext& context, const BlockTensors& weights,
                               const SavedTensors& saved, const TensorView& normed,
                               const TensorView& out) const {
  kernels_.matmul_forward(context, {normed, weights.up, weights.up_bias, saved.up});
  if (config_.family == ModelFamily::kGpt2) {
    kernels_.gelu_forward(context, {saved.up, saved.activated});
  } else {
    kernels_.swiglu_forward(context, {saved.up, saved.activated});
  }
  if (out.empty()) return;
  kernels_.matmul_forward(context, {saved.activated, weights.down, weights.down_bias, out});
}

void UnitCompute::block_forward(const KernelContext& context, std::int64_t unit,
                                const UnitMemory& memory) const {
  const BlockTensors weights = block_weights(unit, memory);
  const SavedTensors saved = saved_tensors(config_, batch_, type_, memory.saved);
  const TensorView hidden = rows(memory.hidden, config_.width);
  norm_forward(context, hidden, weights.norm1, weights.norm1_bias, saved.normed1, saved.mean1,
               saved.rstd1);
  attend(context, weights, saved, saved.normed1, memory.constants, saved.middle);
  kernels_.add(context, {hidden, saved.middle, saved.middle});
  norm_forward(context, saved.middle, weights.norm2, weights.norm2_bias, saved.normed2, saved.mean2,
               saved.rstd2);
  const TensorView out = rows(memory.hidden_out, config_.width);
  feed_forward(context, weights, saved, saved.normed2, out);
  if (!out.empty()) kernels_.add(context, {saved.middle, out, out});
}

// --- backward
// --------------------------------------------------------------------------------------

TensorView UnitCompute::Scratch::wide_columns(std::int64_t columns) const {
  return view(wide.data, wide.dtype, wide.shape[0], columns);
}

TensorView UnitCompute::Scratch::narrow_columns(std::int64_t columns) const {
  return view(narrow.data, narrow.dtype, narrow.shape[0], columns);
}

UnitCompute::Scratch UnitCompute::carve_scratch(KernelContext& context) const {
  TensorCarver carver(context.workspace);
  Scratch scratch;
  scratch.wide = carver.take(type_, batch_.rows(), wide_width(config_));
  scratch.narrow = carver.take(type_, batch_.rows(), narrow_width(config_));
  scratch.middle_gradient = carver.take(type_, batch_.rows(), config_.width);
  context.workspace = carver.rest();
  return scratch;
}

void UnitCompute::clear_padding(const KernelContext& context, std::int64_t unit,
                                std::byte* gradient) const {
  for (const ElementSpan& padding : layout_.at(unit).padding) {
    std::byte* begin = gradient + static_cast<std::size_t>(padding.begin) * sizeof(float);
    kernels_.fill_zero(context, {view(begin, DType::kF32, padding.end - padding.begin)});
  }
}

void UnitCompute::norm_backward(const KernelContext& context, const Norm& norm) const {
  if (config_.family == ModelFamily::kGpt2) {
    kernels_.layer_norm_backward(
        context, {norm.dy, norm.x, norm.weight, norm.mean, norm.rstd, norm.dresidual, norm.dx,
                  norm.dweight, norm.dbias, norm.mode});
  } else {
    kernels_.rms_norm_backward(context, {norm.dy, norm.x, norm.weight, norm.rstd, norm.dresidual,
                                         norm.dx, norm.dweight, norm.mode});
  }
}

void UnitCompute::linear_backward(const KernelContext& context, const MatmulBackwardInput& input,
                                  const MatmulBackwardWeight& weight) const {
  kernels_.matmul_backward_weight(context, weight);
  kernels_.matmul_backward_input(context, input);
}

UnitCompute::Products UnitCompute::products_of(std::int64_t unit, const UnitMemory& memory) const {
  return {block_weights(unit, memory),
          block_tensors(config_, layout_.at(unit), memory.gradient, DType::kF32),
          saved_tensors(config_, batch_, type_, memory.saved), memory.gradient_mode,
          memory.constants};
}

void UnitCompute::feed_forward_backward(const KernelContext& context, const Products& products,
                                        const Scratch& scratch, const TensorView& normed,
                                        const TensorView& dout, const TensorView& dnormed) const {
  const auto& [weights, gradients, saved, mode, table] = products;
  const TensorView dactivated = scratch.narrow_columns(config_.intermediate);
  linear_backward(context, {dout, weights.down, dactivated},
                  {dout, saved.activated, gradients.down, gradients.down_bias, mode});
  const TensorView dup = scratch.wide_columns(up_columns(config_));
  if (config_.family == ModelFamily::kGpt2) {
    kernels_.gelu_backward(context, {saved.up, dactivated, dup});
  } else {
    kernels_.swiglu_backward(context, {saved.up, dactivated, dup});
  }
  linear_backward(context, {dup, weights.up, dnormed},
                  {dup, normed, gradients.up, gradients.up_bias, mode});
}

void UnitCompute::attend_backward(const KernelContext& context, const Products& products,
                                  const Scratch& scratch, const TensorView& normed,
                                  const TensorView& dmiddle, const TensorView& dnormed) const {
  const auto& [weights, gradients, saved, mode, table] = products;
  const TensorView dattended = scratch.narrow_columns(config_.heads * config_.head_width);
  linear_backward(context, {dmiddle, weights.projection, dattended},
                  {dmiddle, saved.attended, gradients.projection, gradients.projection_bias, mode});
  const TensorView dqkv = scratch.wide_columns(qkv_columns(config_));
  kernels_.attention_backward(context, {attention_shape(), saved.qkv, saved.attended,
                                        saved.log_sum_exp, dattended, dqkv, attention_scale()});
  rotate(context, dqkv, table, true);
  linear_backward(context, {dqkv, weights.qkv, dnormed},
                  {dqkv, normed, gradients.qkv, gradients.qkv_bias, mode});
}

void UnitCompute::block_backward(const KernelContext& context, std::int64_t unit,
                                 const UnitMemory& memory) const {
  const Products products = products_of(unit, memory);
  const auto& [weights, gradients, saved, mode, table] = products;
  KernelContext inner = context;
  const Scratch scratch = carve_scratch(inner);
  const TensorView dout = rows(memory.hidden_gradient, config_.width);
  const TensorView dnormed = scratch.narrow_columns(config_.width);
  feed_forward_backward(inner, products, scratch, saved.normed2, dout, dnormed);
  norm_backward(inner, {dnormed, saved.middle, weights.norm2, saved.mean2, saved.rstd2, dout,
                        scratch.middle_gradient, gradients.norm2, gradients.norm2_bias, mode});
  attend_backward(inner, products, scratch, saved.normed1, scratch.middle_gradient, dnormed);
  norm_backward(
      inner, {dnormed, rows(memory.hidden, config_.width), weights.norm1, saved.mean1, saved.rstd1,
              scratch.middle_gradient, rows(memory.hidden_gradient_out, config_.width),
              gradients.norm1, gradients.norm1_bias, mode});
  if (mode == GradientMode::kAssign) clear_padding(inner, unit, memory.gradient);
}

HeadTensors UnitCompute::head_weights(const UnitMemory& memory) const {
  HeadTensors weights = head_tensors(config_, layout_.back(), memory.parameters, type_);
  if (config_.tied) {
    weights.weight =
        embedding_tensors(config_, layout_.front(), memory.tied_parameters, type_).tokens;
  }
  return weights;
}

HeadTensors UnitCompute::head_gradients(const UnitMemory& memory) const {
  HeadTensors gradients = head_tensors(config_, layout_.back(), memory.gradient, DType::kF32);
  if (config_.tied) {
    gradients.weight =
        embedding_tensors(config_, layout_.front(), memory.tied_gradient, DType::kF32).tokens;
  }
  return gradients;
}

void UnitCompute::head(const KernelContext& context, const UnitMemory& memory) const {
  const bool backward = memory.hidden_gradient_out != nullptr;
  const std::int64_t unit = static_cast<std::int64_t>(layout_.size()) - 1;
  const HeadTensors weights = head_weights(memory);
  TensorCarver carver(context.workspace);
  const TensorView normed = carver.take(type_, batch_.rows(), config_.width);
  const TensorView dnormed = carver.take(type_, batch_.rows(), config_.width);
  const TensorView mean = carver.take(DType::kF32, batch_.rows());
  const TensorView rstd = carver.take(DType::kF32, batch_.rows());
  KernelContext inner = context;
  inner.workspace = carver.rest();

  const TensorView hidden = rows(memory.hidden, config_.width);
  norm_forward(inner, hidden, weights.norm, weights.norm_bias, normed, mean, rstd);
  HeadLoss loss;
  loss.h = normed;
  loss.weight = weights.weight;
  loss.target = targets(memory.tokens);
  loss.logits = memory.logits;
  loss.gradient_scale = memory.gradient_scale;
  loss.loss_sum = memory.loss_sum;
  if (!backward) return kernels_.head_loss(inner, loss);

  const HeadTensors gradients = head_gradients(memory);
  loss.dh = dnormed;
  loss.mode = config_.tied ? memory.tied_gradient_mode : memory.gradient_mode;
  loss.dweight = gradients.weight;
  kernels_.head_loss(inner, loss);
  norm_backward(inner, {dnormed, hidden, weights.norm, mean, rstd, TensorView{},
                        rows(memory.hidden_gradient_out, config_.width), gradients.norm,
                        gradients.norm_bias, memory.gradient_mode});
  if (memory.gradient_mode == GradientMode::kAssign) clear_padding(inner, unit, memory.gradient);
}

void UnitCompute::embedding_backward(const KernelContext& context, const UnitMemory& memory,
                                     std::span<std::byte* const> hidden_gradients,
                                     std::span<TensorView> views) const {
  const EmbeddingTensors gradients =
      embedding_tensors(config_, layout_.front(), memory.gradient, DType::kF32);
  const std::size_t count = hidden_gradients.size();
  TERRACE_CHECK_LE(2 * count, views.size());
  for (std::size_t m = 0; m < count; ++m) {
    views[m] = tokens(memory.tokens + m * tokens_bytes());
    views[count + m] = rows(hidden_gradients[m], config_.width);
  }
  EmbeddingBackward args;
  args.tokens = views.first(count);
  args.dh = views.subspan(count, count);
  args.dwte = gradients.tokens;
  args.dwpe = gradients.positions;
  args.sequence = batch_.positions;
  args.wte_mode = memory.gradient_mode;
  if (split_.ranks > 1) args.first_token = first_token_;
  kernels_.embedding_backward(context, args);
  clear_padding(context, 0, memory.gradient);
}

std::vector<float> UnitCompute::constants() const {
  if (config_.family == ModelFamily::kGpt2) return {};
  std::vector<float> table(static_cast<std::size_t>(batch_.positions * config_.head_width));
  fill_rope_table(config_.rope, batch_.positions, config_.head_width, table);
  return table;
}

}  // namespace terrace
