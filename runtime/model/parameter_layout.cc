#include "runtime/model/parameter_layout.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "base/check.h"

namespace terrace {
namespace {

// The rank's part of a tensor: shape and slice.
ParameterTensor part_of(ParameterTensor tensor, const TensorSplit& split) {
  if (tensor.cut == TensorCut::kReplicated) return tensor;
  TensorSlice& slice = tensor.slice;
  slice.ranks = split.ranks;
  slice.rank = split.rank;
  if (tensor.cut == TensorCut::kColumns) {
    tensor.columns = split.part_of(tensor.columns);
    slice.runs = tensor.rows;
    slice.run = tensor.columns;
  } else {
    const std::int64_t group = split.part_of(tensor.rows / tensor.row_groups);
    tensor.rows = group * tensor.row_groups;
    slice.runs = tensor.row_groups;
    slice.run = group * tensor.columns;
  }
  return tensor;
}

// The unit of a tensor-parallel rank, but for the padding at its end.
UnitLayout tensor_part(const UnitLayout& whole, const TensorSplit& split) {
  UnitLayout unit;
  unit.kind = whole.kind;
  unit.index = whole.index;
  const auto add = [&](const ParameterTensor& tensor) {
    ParameterTensor part = part_of(tensor, split);
    part.offset = unit.elements;
    unit.elements += part.elements();
    const std::int64_t here = part.offset + part.slice.elements_of(split.rank);
    if (here < unit.elements) unit.padding.push_back({here, unit.elements});
    if (part.is_norm) {
      if (unit.norms.empty()) unit.norms.begin = part.offset;
      unit.norms.end = unit.elements;
    }
    unit.tensors.push_back(std::move(part));
  };
  for (const ParameterTensor& tensor : whole.tensors) {
    if (tensor.cut != TensorCut::kReplicated) add(tensor);
  }
  const std::int64_t end = unit.elements;
  unit.elements = (end + kBlockElements - 1) / kBlockElements * kBlockElements;
  if (end < unit.elements) unit.padding.push_back({end, unit.elements});
  unit.replicated = {unit.elements, unit.elements};
  for (const ParameterTensor& tensor : whole.tensors) {
    if (tensor.cut == TensorCut::kReplicated) add(tensor);
  }
  unit.replicated.end = unit.elements;
  return unit;
}

void pad(UnitLayout& unit, std::int32_t ranks) {
  const std::int64_t grain = ranks * kBlockElements;
  unit.padded_elements = (unit.elements + grain - 1) / grain * grain;
  if (unit.elements < unit.padded_elements) {
    unit.padding.push_back({unit.elements, unit.padded_elements});
  }
  if (!unit.replicated.empty()) unit.replicated.end = unit.padded_elements;
}

// Adds tensors to a unit one after the other.
class UnitBuilder {
 public:
  UnitBuilder(UnitKind kind, std::int64_t index) {
    unit_.kind = kind;
    unit_.index = index;
  }

  ParameterTensor& matrix(const std::string& name, std::int64_t rows, std::int64_t columns,
                          float deviation, TensorCut cut = TensorCut::kReplicated) {
    ParameterTensor& tensor = add(name, rows, columns);
    tensor.decay = true;
    tensor.init_deviation = deviation;
    tensor.cut = cut;
    return tensor;
  }

  // gpt2's Conv1D keeps its weight as [in, out].
  ParameterTensor& conv1d(const std::string& name, std::int64_t rows, std::int64_t columns,
                          float deviation, TensorCut cut) {
    ParameterTensor& tensor = matrix(name, rows, columns, deviation, cut);
    tensor.stored_transposed = true;
    return tensor;
  }

  ParameterTensor& bias(const std::string& name, std::int64_t elements,
                        TensorCut cut = TensorCut::kReplicated) {
    ParameterTensor& tensor = add(name, elements, 1);
    tensor.is_vector = true;
    tensor.init = Init::kZeros;
    tensor.init_deviation = 0.0F;
    tensor.cut = cut;
    return tensor;
  }

  void norm(const std::string& name, std::int64_t elements, Init init = Init::kOnes) {
    ParameterTensor& tensor = bias(name, elements);
    tensor.init = init;
    tensor.is_norm = true;
  }

  UnitLayout finish() { return std::move(unit_); }

 private:
  ParameterTensor& add(const std::string& name, std::int64_t rows, std::int64_t columns) {
    ParameterTensor tensor;
    tensor.name = name;
    tensor.rows = rows;
    tensor.columns = columns;
    tensor.offset = unit_.elements;
    tensor.slice = {.whole_offset = tensor.offset,
                    .whole_elements = tensor.elements(),
                    .run = tensor.elements()};
    unit_.elements += tensor.elements();
    return unit_.tensors.emplace_back(std::move(tensor));
  }

  UnitLayout unit_;
};

void gpt2_embedding(const ModelConfig& config, UnitBuilder& unit) {
  unit.matrix("wte.weight", config.vocabulary, config.width, config.initializer_range,
              TensorCut::kRows);
  unit.matrix("wpe.weight", config.positions, config.width, config.initializer_range);
}

void gpt2_block(const ModelConfig& config, std::int64_t layer, UnitBuilder& unit) {
  const std::string prefix = fmt::format("h.{}.", layer);
  const std::int64_t width = config.width;
  const std::int64_t inner = config.intermediate;
  const float deviation = config.initializer_range;
  // What joins the residual stream starts smaller, as there are two such sums a layer.
  const float residual = deviation / std::sqrt(2.0F * static_cast<float>(config.layers));
  constexpr TensorCut rows = TensorCut::kRows;
  constexpr TensorCut columns = TensorCut::kColumns;
  unit.conv1d(prefix + "attn.c_attn.weight", 3 * width, width, deviation, rows).row_groups = 3;
  unit.conv1d(prefix + "attn.c_proj.weight", width, width, residual, columns);
  unit.conv1d(prefix + "mlp.c_fc.weight", inner, width, deviation, rows);
  unit.conv1d(prefix + "mlp.c_proj.weight", width, inner, residual, columns);
  unit.bias(prefix + "attn.c_attn.bias", 3 * width, rows).row_groups = 3;
  unit.bias(prefix + "attn.c_proj.bias", width);
  unit.bias(prefix + "mlp.c_fc.bias", inner, rows);
  unit.bias(prefix + "mlp.c_proj.bias", width);
  unit.norm(prefix + "ln_1.weight", width);
  unit.norm(prefix + "ln_1.bias", width, Init::kZeros);
  unit.norm(prefix + "ln_2.weight", width);
  unit.norm(prefix + "ln_2.bias", width, Init::kZeros);
}

void gpt2_head(const ModelConfig& config, UnitBuilder& unit) {
  if (!config.tied) {
    unit.matrix("lm_head.weight", config.vocabulary, config.width, config.initializer_range,
                TensorCut::kRows);
  }
  unit.norm("ln_f.weight", config.width);
  unit.norm("ln_f.bias", config.width, Init::kZeros);
}

void llama_embedding(const ModelConfig& config, UnitBuilder& unit) {
  unit.matrix("model.embed_tokens.weight", config.vocabulary, config.width,
              config.initializer_range, TensorCut::kRows);
}

void llama_block(const ModelConfig& config, std::int64_t layer, UnitBuilder& unit) {
  const std::string prefix = fmt::format("model.layers.{}.", layer);
  const std::string attention = prefix + "self_attn.";
  const std::string mlp = prefix + "mlp.";
  const std::int64_t width = config.width;
  const std::int64_t queries = config.heads * config.head_width;
  const std::int64_t keys = config.key_value_heads * config.head_width;
  const float deviation = config.initializer_range;
  constexpr TensorCut rows = TensorCut::kRows;
  constexpr TensorCut columns = TensorCut::kColumns;
  unit.matrix(attention + "q_proj.weight", queries, width, deviation, rows);
  unit.matrix(attention + "k_proj.weight", keys, width, deviation, rows);
  unit.matrix(attention + "v_proj.weight", keys, width, deviation, rows);
  unit.matrix(attention + "o_proj.weight", width, queries, deviation, columns);
  unit.matrix(mlp + "gate_proj.weight", config.intermediate, width, deviation, rows);
  unit.matrix(mlp + "up_proj.weight", config.intermediate, width, deviation, rows);
  unit.matrix(mlp + "down_proj.weight", width, config.intermediate, deviation, columns);
  if (config.attention_bias) {
    unit.bias(attention + "q_proj.bias", queries, rows);
    unit.bias(attention + "k_proj.bias", keys, rows);
    unit.bias(attention + "v_proj.bias", keys, rows);
    unit.bias(attention + "o_proj.bias", width);
  }
  if (config.mlp_bias) {
    unit.bias(mlp + "gate_proj.bias", config.intermediate, rows);
    unit.bias(mlp + "up_proj.bias", config.intermediate, rows);
    unit.bias(mlp + "down_proj.bias", width);
  }
  unit.norm(prefix + "input_layernorm.weight", width);
  unit.norm(prefix + "post_attention_layernorm.weight", width);
}

void llama_head(const ModelConfig& config, UnitBuilder& unit) {
  if (!config.tied) {
    unit.matrix("lm_head.weight", config.vocabulary, config.width, config.initializer_range,
                TensorCut::kRows);
  }
  unit.norm("model.norm.weight", config.width);
}

}  // namespace

const ParameterTensor& UnitLayout::find(std::string_view suffix) const {
  const ParameterTensor* found = nullptr;
  for (const ParameterTensor& tensor : tensors) {
    if (!tensor.name.ends_with(suffix)) continue;
    if (found != nullptr) TERRACE_CHECK_EQ(found->name, tensor.name);  // the suffix names one only
    found = &tensor;
  }
  if (found == nullptr) TERRACE_CHECK_EQ(suffix, std::string());  // the unit has such a tensor
  return *found;
}

std::vector<UnitLayout> parameter_layout(const ModelConfig& config, std::int32_t ranks,
                                         const TensorSplit& tensor) {
  const bool gpt2 = config.family == ModelFamily::kGpt2;
  std::vector<UnitLayout> layout;
  UnitBuilder embedding(UnitKind::kEmbedding, 0);
  gpt2 ? gpt2_embedding(config, embedding) : llama_embedding(config, embedding);
  layout.push_back(embedding.finish());
  for (std::int64_t layer = 0; layer < config.layers; ++layer) {
    UnitBuilder block(UnitKind::kBlock, layer + 1);
    gpt2 ? gpt2_block(config, layer, block) : llama_block(config, layer, block);
    layout.push_back(block.finish());
  }
  UnitBuilder head(UnitKind::kHead, config.layers + 1);
  gpt2 ? gpt2_head(config, head) : llama_head(config, head);
  layout.push_back(head.finish());
  std::uint32_t stream = 0;
  for (UnitLayout& unit : layout) {
    for (ParameterTensor& one : unit.tensors) one.random_stream = stream++;
    if (tensor.ranks > 1) unit = tensor_part(unit, tensor);
    pad(unit, ranks);
  }
  return layout;
}

std::int64_t parameter_count(const std::vector<UnitLayout>& layout) {
  std::int64_t count = 0;
  for (const UnitLayout& unit : layout) count += unit.elements;
  return count;
}

}  // namespace terrace
