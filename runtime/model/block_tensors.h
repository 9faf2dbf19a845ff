#pragma once

#include <cstdint>
#include <span>

#include "memory/tensor.h"
#include "runtime/model/model_config.h"
#include "runtime/model/parameter_layout.h"

namespace terrace {

struct BatchShape {
  std::int64_t sequences = 1;  // B
  std::int64_t positions = 1;  // T
  // Ranks that share the rows of what is not tensor-parallel: those of sequence parallelism.
  std::int64_t row_parts = 1;

  std::int64_t rows() const { return sequences * positions; }
  std::int64_t own_rows() const { return rows() / row_parts; }
};

// The parameters of a transformer block, or their gradients, as views into its flat sequence. What
// the family does not have is empty. qkv is q|k|v, up is gate|up for llama. `config` and `unit` of
// a tensor-parallel rank are those of its part.
struct BlockTensors {
  TensorView qkv, qkv_bias, projection, projection_bias;
  TensorView up, up_bias, down, down_bias;
  TensorView norm1, norm1_bias, norm2, norm2_bias;
};
BlockTensors block_tensors(const ModelConfig& config, const UnitLayout& unit, std::byte* base,
                           DType dtype);

// The final norm and the head's weight; the latter empty when it is the embedding's.
struct HeadTensors {
  TensorView weight, norm, norm_bias;
};
HeadTensors head_tensors(const ModelConfig& config, const UnitLayout& unit, std::byte* base,
                         DType dtype);

struct EmbeddingTensors {
  TensorView tokens, positions;  // positions: gpt2 only
};
EmbeddingTensors embedding_tensors(const ModelConfig& config, const UnitLayout& unit,
                                   std::byte* base, DType dtype);

// What a block's forward leaves for its backward: R rows each, or this rank's n = R / row_parts.
struct SavedTensors {
  TensorView normed1, mean1, rstd1;       // [n,C], statistics [n]; mean: gpt2 only
  TensorView qkv, attended, log_sum_exp;  // [R,(H+2G)D] after rotation, [R,HD], [B,H,T]
  TensorView middle;                      // [n,C] after the attention's residual
  TensorView normed2, mean2, rstd2;
  TensorView up, activated;  // [R,2I] or [R,I], [R,I]
};
SavedTensors saved_tensors(const ModelConfig& config, const BatchShape& batch, DType dtype,
                           std::span<std::byte> memory);
std::size_t saved_bytes(const ModelConfig& config, const BatchShape& batch, DType dtype);

inline std::int64_t qkv_columns(const ModelConfig& config) {
  return (config.heads + 2 * config.key_value_heads) * config.head_width;
}
inline std::int64_t up_columns(const ModelConfig& config) {
  return config.family == ModelFamily::kLlama ? 2 * config.intermediate : config.intermediate;
}

}  // namespace terrace
