#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/model/model_config.h"

// Which parameters each unit has, and where in the unit's flat sequence each lies.
namespace terrace {

// The grain of shards and of norm partials, in elements.
inline constexpr std::int64_t kBlockElements = 4096;
// The grain of extents, copies and optimizer calls, in elements: the same whatever the budgets.
inline constexpr std::int64_t kChunkElements = 16 * 1024 * 1024;

enum class UnitKind : std::uint8_t { kEmbedding, kBlock, kHead };
enum class Init : std::uint8_t { kNormal, kOnes, kZeros };

struct ParameterTensor {
  std::string name;       // Hugging Face's, without gpt2's optional "transformer." prefix
  std::int64_t rows = 0;  // [rows, columns] as Linear stores it: out, in. A vector has 1 column.
  std::int64_t columns = 1;
  bool is_vector = false;
  std::int64_t offset = 0;         // elements from the unit's start
  bool decay = false;              // weight decay applies: matrices only
  bool stored_transposed = false;  // on disk [in, out] (gpt2's Conv1D)
  Init init = Init::kNormal;
  float init_deviation = 0.02F;
  std::uint32_t random_stream = 0;  // unique in the model

  std::int64_t elements() const { return rows * columns; }
};

// Tensors lie without gaps, so that q|k|v and gate|up are one matrix each; matrices first. The unit
// is zero-padded at its end to whole blocks, as many for each rank as for any other.
struct UnitLayout {
  UnitKind kind = UnitKind::kBlock;
  std::int64_t index = 0;  // unit number: 0 embedding, 1..layers blocks, layers+1 head
  std::vector<ParameterTensor> tensors;
  std::int64_t elements = 0;         // without padding
  std::int64_t padded_elements = 0;  // a multiple of ranks * kBlockElements

  const ParameterTensor& find(std::string_view suffix) const;  // by the end of its name
};

// Blocks: llama q k v o gate up down, then biases and norms; gpt2 c_attn c_proj c_fc c_proj, then
// biases and norms. Embedding: wte / embed_tokens, then wpe. Head: lm_head.weight unless tied, then
// the final norm.
// `ranks` are those that the states may be divided over.
std::vector<UnitLayout> parameter_layout(const ModelConfig& config, std::int32_t ranks = 1);

// Elements without padding, over all units.
std::int64_t parameter_count(const std::vector<UnitLayout>& layout);

}  // namespace terrace
