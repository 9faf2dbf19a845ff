#include "runtime/model/parameter_layout.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "base/check.h"

namespace terrace {
namespace {

// Adds tensors to a unit one after the other.
class UnitBuilder {
 public:
  UnitBuilder(UnitKind kind, std::int64_t index) {
    unit_.kind = kind;
    unit_.index = index;
  }

  ParameterTensor& matrix(const std::string& name, std::int64_t rows, std::int64_t columns,
                          float deviation) {
    ParameterTensor& tensor = add(name, rows, columns);
    tensor.decay = true;
    tensor.init_deviation = deviation;
    return tensor;
  }

  // gpt2's Conv1D keeps its weight as [in, out].
  void conv1d(const std::string& name, std::int64_t rows, std::int64_t columns, float deviation) {
    matrix(name, rows, columns, deviation).stored_transposed = true;
  }

  void vector(const std::string& name, std::int64_t elements, Init init) {
    ParameterTensor& tensor = add(name, elements, 1);
    tensor.is_vector = true;
    tensor.init = init;
    tensor.init_deviation = 0.0F;
  }

  UnitLayout finish(std::int32_t ranks) {
    const std::int64_t grain = ranks * kBlockElements;
    unit_.padded_elements = (unit_.elements + grain - 1) / grain * grain;
    return std::move(unit_);
  }

 private:
  ParameterTensor& add(const std::string& name, std::int64_t rows, std::int64_t columns) {
    ParameterTensor tensor;
    tensor.name = name;
    tensor.rows = rows;
    tensor.columns = columns;
    tensor.offset = unit_.elements;
    unit_.elements += tensor.elements();
    return unit_.tensors.emplace_back(std::move(tensor));
  }

  UnitLayout unit_;
};

void gpt2_embedding(const ModelConfig& config, UnitBuilder& unit) {
  unit.matrix("wte.weight", config.vocabulary, config.width, config.initializer_range);
  unit.matrix("wpe.weight", config.positions, config.width, config.initializer_range);
}

void gpt2_block(const ModelConfig& config, std::int64_t layer, UnitBuilder& unit) {
  const std::string prefix = fmt::format("h.{}.", layer);
  const std::int64_t width = config.width;
  const std::int64_t inner = config.intermediate;
  const float deviation = config.initializer_range;
  // What joins the residual stream starts smaller, as there are two such sums a layer.
  const float residual = deviation / std::sqrt(2.0F * static_cast<float>(config.layers));
  unit.conv1d(prefix + "attn.c_attn.weight", 3 * width, width, deviation);
  unit.conv1d(prefix + "attn.c_proj.weight", width, width, residual);
  unit.conv1d(prefix + "mlp.c_fc.weight", inner, width, deviation);
  unit.conv1d(prefix + "mlp.c_proj.weight", width, inner, residual);
  unit.vector(prefix + "attn.c_attn.bias", 3 * width, Init::kZeros);
  unit.vector(prefix + "attn.c_proj.bias", width, Init::kZeros);
  unit.vector(prefix + "mlp.c_fc.bias", inner, Init::kZeros);
  unit.vector(prefix + "mlp.c_proj.bias", width, Init::kZeros);
  unit.vector(prefix + "ln_1.weight", width, Init::kOnes);
  unit.vector(prefix + "ln_1.bias", width, Init::kZeros);
  unit.vector(prefix + "ln_2.weight", width, Init::kOnes);
  unit.vector(prefix + "ln_2.bias", width, Init::kZeros);
}

void gpt2_head(const ModelConfig& config, UnitBuilder& unit) {
  if (!config.tied) {
    unit.matrix("lm_head.weight", config.vocabulary, config.width, config.initializer_range);
  }
  unit.vector("ln_f.weight", config.width, Init::kOnes);
  unit.vector("ln_f.bias", config.width, Init::kZeros);
}

void llama_embedding(const ModelConfig& config, UnitBuilder& unit) {
  unit.matrix("model.embed_tokens.weight", config.vocabulary, config.width,
              config.initializer_range);
}

void llama_block(const ModelConfig& config, std::int64_t layer, UnitBuilder& unit) {
  const std::string prefix = fmt::format("model.layers.{}.", layer);
  const std::string attention = prefix + "self_attn.";
  const std::string mlp = prefix + "mlp.";
  const std::int64_t width = config.width;
  const std::int64_t queries = config.heads * config.head_width;
  const std::int64_t keys = config.key_value_heads * config.head_width;
  const float deviation = config.initializer_range;
  unit.matrix(attention + "q_proj.weight", queries, width, deviation);
  unit.matrix(attention + "k_proj.weight", keys, width, deviation);
  unit.matrix(attention + "v_proj.weight", keys, width, deviation);
  unit.matrix(attention + "o_proj.weight", width, queries, deviation);
  unit.matrix(mlp + "gate_proj.weight", config.intermediate, width, deviation);
  unit.matrix(mlp + "up_proj.weight", config.intermediate, width, deviation);
  unit.matrix(mlp + "down_proj.weight", width, config.intermediate, deviation);
  if (config.attention_bias) {
    unit.vector(attention + "q_proj.bias", queries, Init::kZeros);
    unit.vector(attention + "k_proj.bias", keys, Init::kZeros);
    unit.vector(attention + "v_proj.bias", keys, Init::kZeros);
    unit.vector(attention + "o_proj.bias", width, Init::kZeros);
  }
  if (config.mlp_bias) {
    unit.vector(mlp + "gate_proj.bias", config.intermediate, Init::kZeros);
    unit.vector(mlp + "up_proj.bias", config.intermediate, Init::kZeros);
    unit.vector(mlp + "down_proj.bias", width, Init::kZeros);
  }
  unit.vector(prefix + "input_layernorm.weight", width, Init::kOnes);
  unit.vector(prefix + "post_attention_layernorm.weight", width, Init::kOnes);
}

void llama_head(const ModelConfig& config, UnitBuilder& unit) {
  if (!config.tied) {
    unit.matrix("lm_head.weight", config.vocabulary, config.width, config.initializer_range);
  }
  unit.vector("model.norm.weight", config.width, Init::kOnes);
}

bool ends_with(const std::string& text, std::string_view suffix) {
  return text.size() >= suffix.size() &&
         text.compare(text.size() - suffix.size(), suffix.size(), suffix) == 0;
}

}  // namespace

const ParameterTensor& UnitLayout::find(std::string_view suffix) const {
  const ParameterTensor* found = nullptr;
  for (const ParameterTensor& tensor : tensors) {
    if (!ends_with(tensor.name, suffix)) continue;
    if (found != nullptr) TERRACE_CHECK_EQ(found->name, tensor.name);  // the suffix names one only
    found = &tensor;
  }
  if (found == nullptr) TERRACE_CHECK_EQ(suffix, std::string());  // the unit has such a tensor
  return *found;
}

std::vector<UnitLayout> parameter_layout(const ModelConfig& config, std::int32_t ranks) {
  const bool gpt2 = config.family == ModelFamily::kGpt2;
  std::vector<UnitLayout> layout;
  UnitBuilder embedding(UnitKind::kEmbedding, 0);
  gpt2 ? gpt2_embedding(config, embedding) : llama_embedding(config, embedding);
  layout.push_back(embedding.finish(ranks));
  for (std::int64_t layer = 0; layer < config.layers; ++layer) {
    UnitBuilder block(UnitKind::kBlock, layer + 1);
    gpt2 ? gpt2_block(config, layer, block) : llama_block(config, layer, block);
    layout.push_back(block.finish(ranks));
  }
  UnitBuilder head(UnitKind::kHead, config.layers + 1);
  gpt2 ? gpt2_head(config, head) : llama_head(config, head);
  layout.push_back(head.finish(ranks));
  std::uint32_t stream = 0;
  for (UnitLayout& unit : layout) {
    for (ParameterTensor& tensor : unit.tensors) tensor.random_stream = stream++;
  }
  return layout;
}

std::int64_t parameter_count(const std::vector<UnitLayout>& layout) {
  std::int64_t count = 0;
  for (const UnitLayout& unit : layout) count += unit.elements;
  return count;
}

}  // namespace terrace
