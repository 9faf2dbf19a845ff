#include "runtime/model/block_tensors.h"

#include <string_view>

#include "runtime/model/tensor_carver.h"

namespace terrace {
namespace {

// Views into a unit's flat sequence by the names of its tensors.
class UnitViews {
 public:
  UnitViews(const UnitLayout& unit, std::byte* base, DType dtype)
      : unit_(unit), base_(base), dtype_(dtype) {}

  // `rows` of columns from the start of the tensor: more than its own where several lie side by
  // side.
  TensorView matrix(std::string_view suffix, std::int64_t rows) const {
    const ParameterTensor& tensor = unit_.find(suffix);
    return view(at(tensor.offset), dtype_, rows, tensor.columns);
  }
  TensorView vector(std::string_view suffix, std::int64_t elements) const {
    return view(at(unit_.find(suffix).offset), dtype_, elements);
  }

 private:
  std::byte* at(std::int64_t offset) const {
    return base_ + static_cast<std::size_t>(offset) * size_of(dtype_);
  }

  const UnitLayout& unit_;
  std::byte* base_;
  DType dtype_;
};

BlockTensors gpt2_block(const ModelConfig& config, const UnitViews& views) {
  const std::int64_t width = config.width;
  BlockTensors block;
  block.qkv = views.matrix("attn.c_attn.weight", qkv_columns(config));
  block.projection = views.matrix("attn.c_proj.weight", width);
  block.up = views.matrix("mlp.c_fc.weight", config.intermediate);
  block.down = views.matrix("mlp.c_proj.weight", width);
  block.qkv_bias = views.vector("attn.c_attn.bias", qkv_columns(config));
  block.projection_bias = views.vector("attn.c_proj.bias", width);
  block.up_bias = views.vector("mlp.c_fc.bias", config.intermediate);
  block.down_bias = views.vector("mlp.c_proj.bias", width);
  block.norm1 = views.vector("ln_1.weight", width);
  block.norm1_bias = views.vector("ln_1.bias", width);
  block.norm2 = views.vector("ln_2.weight", width);
  block.norm2_bias = views.vector("ln_2.bias", width);
  return block;
}

BlockTensors llama_block(const ModelConfig& config, const UnitViews& views) {
  const std::int64_t width = config.width;
  BlockTensors block;
  block.qkv = views.matrix("q_proj.weight", qkv_columns(config));
  block.projection = views.matrix("o_proj.weight", width);
  block.up = views.matrix("gate_proj.weight", 2 * config.intermediate);
  block.down = views.matrix("down_proj.weight", width);
  if (config.attention_bias) {
    block.qkv_bias = views.vector("q_proj.bias", qkv_columns(config));
    block.projection_bias = views.vector("o_proj.bias", width);
  }
  if (config.mlp_bias) {
    block.up_bias = views.vector("gate_proj.bias", 2 * config.intermediate);
    block.down_bias = views.vector("down_proj.bias", width);
  }
  block.norm1 = views.vector("input_layernorm.weight", width);
  block.norm2 = views.vector("post_attention_layernorm.weight", width);
  return block;
}

SavedTensors carve(const ModelConfig& config, const BatchShape& batch, DType dtype,
                   TensorCarver& carver) {
  const std::int64_t rows = batch.rows();
  const std::int64_t own_rows = batch.own_rows();
  const bool has_mean = config.family == ModelFamily::kGpt2;
  SavedTensors saved;
  saved.normed1 = carver.take(dtype, own_rows, config.width);
  saved.rstd1 = carver.take(DType::kF32, own_rows);
  if (has_mean) saved.mean1 = carver.take(DType::kF32, own_rows);
  saved.qkv = carver.take(dtype, rows, qkv_columns(config));
  saved.attended = carver.take(dtype, rows, config.heads * config.head_width);
  saved.log_sum_exp = carver.take(DType::kF32, batch.sequences, config.heads, batch.positions);
  saved.middle = carver.take(dtype, own_rows, config.width);
  saved.normed2 = carver.take(dtype, own_rows, config.width);
  saved.rstd2 = carver.take(DType::kF32, own_rows);
  if (has_mean) saved.mean2 = carver.take(DType::kF32, own_rows);
  saved.up = carver.take(dtype, rows, up_columns(config));
  saved.activated = carver.take(dtype, rows, config.intermediate);
  return saved;
}

}  // namespace

BlockTensors block_tensors(const ModelConfig& config, const UnitLayout& unit, std::byte* base,
                           DType dtype) {
  const UnitViews views(unit, base, dtype);
  return config.family == ModelFamily::kGpt2 ? gpt2_block(config, views)
                                             : llama_block(config, views);
}

HeadTensors head_tensors(const ModelConfig& config, const UnitLayout& unit, std::byte* base,
                         DType dtype) {
  const UnitViews views(unit, base, dtype);
  const bool gpt2 = config.family == ModelFamily::kGpt2;
  HeadTensors head;
  if (!config.tied) head.weight = views.matrix("lm_head.weight", config.vocabulary);
  head.norm = views.vector(gpt2 ? "ln_f.weight" : "norm.weight", config.width);
  if (gpt2) head.norm_bias = views.vector("ln_f.bias", config.width);
  return head;
}

EmbeddingTensors embedding_tensors(const ModelConfig& config, const UnitLayout& unit,
                                   std::byte* base, DType dtype) {
  const UnitViews views(unit, base, dtype);
  const bool gpt2 = config.family == ModelFamily::kGpt2;
  EmbeddingTensors embedding;
  embedding.tokens = views.matrix(gpt2 ? "wte.weight" : "embed_tokens.weight", config.vocabulary);
  if (gpt2) embedding.positions = views.matrix("wpe.weight", config.positions);
  return embedding;
}

SavedTensors saved_tensors(const ModelConfig& config, const BatchShape& batch, DType dtype,
                           std::span<std::byte> memory) {
  TensorCarver carver(memory);
  return carve(config, batch, dtype, carver);
}

std::size_t saved_bytes(const ModelConfig& config, const BatchShape& batch, DType dtype) {
  TensorCarver carver = TensorCarver::counting();
  carve(config, batch, dtype, carver);
  return carver.used_bytes();
}

}  // namespace terrace
