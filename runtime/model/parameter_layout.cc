#include "runtime/model/parameter_layout.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <unordered_map>

#include "base/check.h"
#include "base/error.h"
#include "runtime/model/stored_elements.h"
#include "runtime/model/trainable.h"
#include "runtime/model/unit_arrangement.h"

namespace terrace {
namespace {

// Returns whether a stored name has no place for the number of an expert.
bool is_of_all_experts(std::string_view stored) {
  return !stored.empty() && stored.find("{}") == stored.rfind("{}");
}

// Adds tensors to a unit one after the other.
class UnitBuilder {
 public:
  UnitBuilder(const ModelConfig& config, UnitKind kind, std::int64_t index) : config_(config) {
    unit_.kind = kind;
    unit_.index = index;
  }

  ParameterTensor& matrix(ParameterKind kind, std::int64_t rows, std::int64_t columns,
                          TensorCut cut) {
    return as_matrix(add(kind, rows, columns), cut);
  }

  // Adds a matrix of the expert that all rows have. It is of the same kind as in a layer's
  // feed-forward, under another name.
  void shared_expert_matrix(ParameterKind kind, std::int64_t rows, std::int64_t columns,
                            TensorCut cut) {
    const std::size_t number =
        static_cast<std::size_t>(kind) - static_cast<std::size_t>(ParameterKind::kGate);
    as_matrix(put(named(kind, config_.shared_expert_names.at(number), rows, columns)), cut);
  }

  // Adds a matrix of an expert. Ranks share down by columns, and the others by rows.
  void expert_matrix(ParameterKind kind, std::int64_t expert, std::int64_t rows,
                     std::int64_t columns) {
    const bool is_down = kind == ParameterKind::kExpertDown;
    as_matrix(add(kind, rows, columns, expert), is_down ? TensorCut::kColumns : TensorCut::kRows);
  }

  // Adds the biases of all experts, one a row.
  void expert_biases(ParameterKind kind, std::int64_t columns, TensorCut cut) {
    ParameterTensor& biases = add(kind, config_.experts.count, columns);
    biases.init = Init::kZeros;
    biases.cut = cut;
  }

  ParameterTensor& bias(ParameterKind kind, std::int64_t elements,
                        TensorCut cut = TensorCut::kReplicated) {
    ParameterTensor& tensor = add(kind, elements, 1);
    tensor.is_vector = true;
    tensor.init = Init::kZeros;
    tensor.init_deviation = 0.0F;
    tensor.cut = cut;
    return tensor;
  }

  // Lets a vector start as matrices do.
  void starts_random(ParameterTensor& vector) const {
    vector.init = Init::kNormal;
    vector.init_deviation = config_.initializer_range;
  }

  // Adds a norm of rows, with a bias if it is a layer norm that has one.
  void norm(ParameterKind weight, ParameterKind bias_kind) {
    norm_weight(weight, config_.width).gradient = GradientShare::kRows;
    const bool has_bias = config_.norm.has_mean && config_.norm.has_bias;
    if (has_bias) bias(bias_kind, config_.width).gradient = GradientShare::kRows;
  }

  ParameterTensor& norm_weight(ParameterKind kind, std::int64_t elements,
                               TensorCut cut = TensorCut::kReplicated) {
    ParameterTensor& tensor = bias(kind, elements, cut);
    const bool adds_one = config_.norm.form == RmsNormForm::kMultiplyByOnePlus;
    tensor.init = adds_one ? Init::kZeros : Init::kOnes;
    return tensor;
  }

  // Adds adapters to the matrices so far. Matrices that are stored as one tensor share one A, and
  // each has its own B.
  void adapters() {
    if (!config_.adapter.is_there()) return;
    std::vector<ParameterTensor> adapted = unit_.tensors;
    std::erase_if(adapted, [&](const ParameterTensor& matrix) {
      return !is_layer_weight(matrix.kind) || !config_.adapter.has_target(matrix.stored_name);
    });
    for (std::size_t i = 0; i < adapted.size(); ++i) {
      const auto is_stored_with = [&](std::size_t other) {
        return other < adapted.size() && adapted[other].stored_name == adapted[i].stored_name;
      };
      if (i == 0 || !is_stored_with(i - 1)) adapter_down(adapted[i], is_stored_with(i + 1));
    }
    for (const ParameterTensor& matrix : adapted) adapter_up(matrix);
    if (!config_.adapter.has_magnitudes) return;
    for (const ParameterTensor& matrix : adapted) adapter_magnitudes(matrix);
  }

  UnitLayout finish() { return std::move(unit_); }

 private:
  ParameterTensor& as_matrix(ParameterTensor& tensor, TensorCut cut) {
    tensor.decay = true;
    tensor.init_deviation = config_.initializer_range;
    tensor.cut = cut;
    return tensor;
  }

  ParameterTensor& add(ParameterKind kind, std::int64_t rows, std::int64_t columns,
                       std::int64_t expert = 0) {
    const ParameterName& name = config_.names.at(static_cast<std::size_t>(kind));
    return put(named(kind, name, rows, columns, expert));
  }

  ParameterTensor named(ParameterKind kind, const ParameterName& name, std::int64_t rows,
                        std::int64_t columns, std::int64_t expert = 0) const {
    TERRACE_CHECK(!name.name.empty());
    const auto numbered = [&](const std::string& pattern) {
      return fmt::format(fmt::runtime(pattern), unit_.index - 1, expert);
    };
    ParameterTensor tensor;
    tensor.kind = kind;
    tensor.expert = static_cast<std::int32_t>(expert);
    tensor.name = numbered(name.name);
    tensor.stored_name = name.stored.empty() ? tensor.name : numbered(name.stored);
    tensor.rows = rows;
    tensor.columns = columns;
    tensor.trainable = is_trainable(config_, tensor.stored_name);
    const bool is_each = config_.experts.storage == ExpertStorage::kEach;
    if (is_each && is_of_expert(kind) && is_of_all_experts(name.stored)) {
      tensor.stored_matrices = config_.experts.count;
    }
    return tensor;
  }

  ParameterTensor& put(ParameterTensor tensor) {
    tensor.offset = unit_.elements;
    tensor.slice = {.whole_elements = tensor.elements(), .run = tensor.elements()};
    unit_.elements += tensor.elements();
    return unit_.tensors.emplace_back(std::move(tensor));
  }

  // Adds the A of a matrix. It starts as torch starts a linear layer: kaiming_uniform_ with
  // a = sqrt(5). Ranks that have rows of the matrix have all of A, but only the part of its
  // gradient that comes from these rows.
  void adapter_down(const ParameterTensor& matrix, bool is_of_several) {
    ParameterTensor a;
    a.kind = adapter_a(matrix.kind);
    a.name = fmt::format("{}.lora_A.weight",
                         module_of(is_of_several ? matrix.stored_name : matrix.name));
    a.stored_name = fmt::format("base_model.model.{}.lora_A.weight", module_of(matrix.stored_name));
    a.rows = config_.adapter.size_of(matrix.stored_name).rank;
    a.columns = matrix.columns;
    a.adapter_scale = config_.adapter.scale_of(matrix.stored_name);
    const bool is_cut = matrix.cut == TensorCut::kColumns;
    a.cut = is_cut ? TensorCut::kColumns : TensorCut::kReplicated;
    a.gradient = is_cut ? GradientShare::kAll : GradientShare::kPart;
    a.decay = true;
    a.init = Init::kUniform;
    a.init_deviation = 1.0F / std::sqrt(static_cast<float>(matrix.columns));
    put(std::move(a));
  }

  // Adds the B of a matrix. It is zero at the start, so that the model computes what it did before.
  void adapter_up(const ParameterTensor& matrix) {
    ParameterTensor b;
    b.kind = adapter_b(matrix.kind);
    b.name = fmt::format("{}.lora_B.weight", module_of(matrix.name));
    b.stored_name = fmt::format("base_model.model.{}.lora_B.weight", module_of(matrix.stored_name));
    b.rows = matrix.rows;
    b.columns = config_.adapter.size_of(matrix.stored_name).rank;
    b.row_groups = matrix.row_groups;
    const bool is_cut = matrix.cut == TensorCut::kRows;
    b.cut = is_cut ? TensorCut::kRows : TensorCut::kReplicated;
    b.gradient = is_cut ? GradientShare::kAll : GradientShare::kPart;
    b.decay = true;
    b.init = Init::kZeros;
    put(std::move(b));
  }

  // Adds the magnitudes of a matrix's rows. They start from these rows' norms, which are known only
  // where the matrix is.
  void adapter_magnitudes(const ParameterTensor& matrix) {
    ParameterTensor magnitudes;
    magnitudes.kind = adapter_magnitude(matrix.kind);
    magnitudes.name = fmt::format("{}.lora_magnitude_vector", module_of(matrix.name));
    magnitudes.stored_name =
        fmt::format("base_model.model.{}.lora_magnitude_vector", module_of(matrix.stored_name));
    magnitudes.rows = matrix.rows;
    magnitudes.is_vector = true;
    magnitudes.init = Init::kOnes;
    put(std::move(magnitudes));
  }

  const ModelConfig& config_;
  UnitLayout unit_;
};

void add_embedding(const ModelConfig& config, UnitBuilder& unit) {
  unit.matrix(ParameterKind::kTokenEmbedding, config.vocabulary, config.width, TensorCut::kRows);
  if (!config.has_position_embedding) return;
  unit.matrix(ParameterKind::kPositionEmbedding, config.positions, config.width,
              TensorCut::kReplicated);
}

void add_attention_matrices(const ModelConfig& config, UnitBuilder& unit) {
  const std::int64_t queries = config.heads * config.head_width;
  const std::int64_t keys = config.key_value_heads * config.head_width;
  if (config.stores_qkv_whole) {
    unit.matrix(ParameterKind::kQuery, config.qkv_columns(), config.width, TensorCut::kRows)
        .row_groups = 3;
  } else {
    unit.matrix(ParameterKind::kQuery, queries, config.width, TensorCut::kRows);
    unit.matrix(ParameterKind::kKey, keys, config.width, TensorCut::kRows);
    unit.matrix(ParameterKind::kValue, keys, config.width, TensorCut::kRows);
  }
  unit.matrix(ParameterKind::kProjection, config.width, queries, TensorCut::kColumns);
}

void add_attention_biases(const ModelConfig& config, UnitBuilder& unit) {
  const std::int64_t queries = config.heads * config.head_width;
  const std::int64_t keys = config.key_value_heads * config.head_width;
  if (config.has_qkv_bias && config.stores_qkv_whole) {
    unit.bias(ParameterKind::kQueryBias, config.qkv_columns(), TensorCut::kRows).row_groups = 3;
  } else if (config.has_qkv_bias) {
    unit.bias(ParameterKind::kQueryBias, queries, TensorCut::kRows);
    unit.bias(ParameterKind::kKeyBias, keys, TensorCut::kRows);
    unit.bias(ParameterKind::kValueBias, keys, TensorCut::kRows);
  }
  if (config.has_projection_bias) unit.bias(ParameterKind::kProjectionBias, config.width);
  if (config.has_sinks) {
    unit.starts_random(unit.bias(ParameterKind::kSinks, config.heads, TensorCut::kRows));
  }
}

void add_query_key_norms(const ModelConfig& config, UnitBuilder& unit) {
  const std::int64_t head = config.head_width;
  if (config.query_key_norms == QueryKeyNorms::kEachHead) {
    unit.norm_weight(ParameterKind::kQueryNorm, head).gradient = GradientShare::kHeads;
    unit.norm_weight(ParameterKind::kKeyNorm, head).gradient = GradientShare::kHeads;
  } else if (config.query_key_norms == QueryKeyNorms::kWholeWidth) {
    unit.norm_weight(ParameterKind::kQueryNorm, config.heads * head, TensorCut::kRows);
    unit.norm_weight(ParameterKind::kKeyNorm, config.key_value_heads * head, TensorCut::kRows);
  }
}

void add_block_norms(const ModelConfig& config, UnitBuilder& unit) {
  if (config.branch_order == BranchOrder::kParallel) {
    return unit.norm(ParameterKind::kAttentionNorm, ParameterKind::kAttentionNormBias);
  }
  const bool before = config.norm_places != NormPlaces::kAfter;
  const bool after = config.norm_places != NormPlaces::kBefore;
  if (before) unit.norm(ParameterKind::kAttentionNorm, ParameterKind::kAttentionNormBias);
  if (after) unit.norm(ParameterKind::kAttentionOutNorm, ParameterKind::kAttentionNormBias);
  if (before) unit.norm(ParameterKind::kFeedForwardNorm, ParameterKind::kFeedForwardNormBias);
  if (after) unit.norm(ParameterKind::kFeedForwardOutNorm, ParameterKind::kFeedForwardNormBias);
}

void add_feed_forward_matrices(const ModelConfig& config, UnitBuilder& unit) {
  const bool gated = config.feed_forward != FeedForward::kGelu;
  const std::int64_t inner = config.intermediate;
  if (gated) unit.matrix(ParameterKind::kGate, inner, config.width, TensorCut::kRows);
  unit.matrix(ParameterKind::kUp, inner, config.width, TensorCut::kRows);
  unit.matrix(ParameterKind::kDown, config.width, inner, TensorCut::kColumns);
}

void add_feed_forward_biases(const ModelConfig& config, UnitBuilder& unit) {
  const bool gated = config.feed_forward != FeedForward::kGelu;
  const std::int64_t inner = config.intermediate;
  if (gated) unit.bias(ParameterKind::kGateBias, inner, TensorCut::kRows);
  unit.bias(ParameterKind::kUpBias, inner, TensorCut::kRows);
  unit.bias(ParameterKind::kDownBias, config.width);
}

// Adds the expert that all rows have, and their shares of it. A rank's gradient of the shares comes
// from its own part of the expert.
void add_shared_expert(const ModelConfig& config, UnitBuilder& unit) {
  const std::int64_t inner = config.experts.shared_intermediate;
  if (inner == 0) return;
  unit.shared_expert_matrix(ParameterKind::kGate, inner, config.width, TensorCut::kRows);
  unit.shared_expert_matrix(ParameterKind::kUp, inner, config.width, TensorCut::kRows);
  unit.shared_expert_matrix(ParameterKind::kDown, config.width, inner, TensorCut::kColumns);
  if (!config.experts.gates_shared) return;
  unit.matrix(ParameterKind::kShare, 1, config.width, TensorCut::kReplicated).gradient =
      GradientShare::kPart;
}

void add_expert_matrices(const ModelConfig& config, UnitBuilder& unit) {
  TERRACE_CHECK(config.feed_forward != FeedForward::kGelu);
  const std::int64_t inner = config.experts.intermediate;
  // A rank's gradient of the router's logits comes from its own part of each expert.
  unit.matrix(ParameterKind::kRouter, config.experts.count, config.width, TensorCut::kReplicated)
      .gradient = GradientShare::kPart;
  add_shared_expert(config, unit);
  for (std::int64_t expert = 0; expert < config.experts.count; ++expert) {
    unit.expert_matrix(ParameterKind::kExpertGate, expert, inner, config.width);
    unit.expert_matrix(ParameterKind::kExpertUp, expert, inner, config.width);
    unit.expert_matrix(ParameterKind::kExpertDown, expert, config.width, inner);
  }
}

// The bias has no gradient: the choice has none.
void add_choice_bias(const ModelConfig& config, UnitBuilder& unit) {
  constexpr std::int64_t kAddends = 3;
  ParameterTensor& bias = unit.bias(ParameterKind::kChoiceBias, kAddends * config.experts.count);
  bias.addends = kAddends;
  bias.trainable = false;
}

// As for the router's weight, a rank's gradient of the router's biases comes from its own part of
// each expert.
void add_expert_biases(const ModelConfig& config, UnitBuilder& unit) {
  ParameterTensor& router = unit.bias(ParameterKind::kRouterBias, config.experts.count);
  unit.starts_random(router);
  router.gradient = GradientShare::kPart;
  const std::int64_t inner = config.experts.intermediate;
  unit.expert_biases(ParameterKind::kExpertGateBias, inner, TensorCut::kColumns);
  unit.expert_biases(ParameterKind::kExpertUpBias, inner, TensorCut::kColumns);
  unit.expert_biases(ParameterKind::kExpertDownBias, config.width, TensorCut::kReplicated);
}

void add_block(const ModelConfig& config, UnitBuilder& unit, bool has_experts) {
  add_attention_matrices(config, unit);
  if (has_experts) {
    add_expert_matrices(config, unit);
  } else {
    add_feed_forward_matrices(config, unit);
  }
  unit.adapters();
  add_attention_biases(config, unit);
  if (config.has_feed_forward_bias && !has_experts) add_feed_forward_biases(config, unit);
  if (config.experts.has_bias && has_experts) add_expert_biases(config, unit);
  if (config.experts.has_choice_bias && has_experts) add_choice_bias(config, unit);
  add_query_key_norms(config, unit);
  add_block_norms(config, unit);
}

void add_head(const ModelConfig& config, UnitBuilder& unit) {
  if (!config.tied) {
    unit.matrix(ParameterKind::kHeadWeight, config.vocabulary, config.width, TensorCut::kRows);
  }
  unit.norm(ParameterKind::kFinalNorm, ParameterKind::kFinalNormBias);
}

// Finds the rows that parameters have in their stored tensor. Parameters that are stored as one
// tensor are its rows, one after the other. No family stores such a tensor transposed, where they
// would be columns, so readers and writers do not handle that.
void find_stored_rows(UnitLayout& unit) {
  struct Stored {
    const ParameterTensor* first = nullptr;
    std::int64_t rows = 0;
  };
  std::unordered_map<std::string_view, Stored> found;
  for (ParameterTensor& tensor : unit.tensors) {
    Stored& stored = found[tensor.stored_name];
    if (stored.first == nullptr) stored.first = &tensor;
    TERRACE_CHECK_EQ(stored.first->columns, tensor.columns);
    TERRACE_CHECK_EQ(stored.first->is_vector, tensor.is_vector);
    tensor.stored_first_row = stored.rows;
    stored.rows += tensor.rows / tensor.addends;
  }
  for (ParameterTensor& tensor : unit.tensors) tensor.stored_rows = found[tensor.stored_name].rows;
}

UnitLayout whole_unit(const ModelConfig& config, UnitKind kind, std::int64_t index) {
  UnitBuilder unit(config, kind, index);
  if (kind == UnitKind::kEmbedding) add_embedding(config, unit);
  if (kind == UnitKind::kBlock) add_block(config, unit, config.layer(index - 1).has_experts);
  if (kind == UnitKind::kHead) add_head(config, unit);
  UnitLayout layout = unit.finish();
  find_stored_rows(layout);
  // Each layer adds to the residual stream twice.
  const float residual =
      config.initializer_range / std::sqrt(2.0F * static_cast<float>(config.layers));
  for (ParameterTensor& tensor : layout.tensors) {
    const bool joins =
        tensor.kind == ParameterKind::kProjection || tensor.kind == ParameterKind::kDown;
    if (joins && config.narrows_residual_init) tensor.init_deviation = residual;
    tensor.stored_transposed = config.stores_transposed && is_layer_weight(tensor.kind);
    TERRACE_CHECK(!tensor.stored_transposed || tensor.stored_rows == tensor.rows);
    tensor.stored_elements = stored_elements(config, tensor);
  }
  return layout;
}

// Returns a random stream that no other tensor has. So the model's parameters start from the same
// numbers with and without an adapter, and a matrix of an adapter starts from the same numbers
// whatever other matrices the adapter has.
std::uint32_t adapter_stream(const UnitLayout& unit, const ParameterTensor& tensor) {
  constexpr std::uint32_t kAdapters = 1U << 31;
  if (is_magnitude(tensor.kind)) {  // they draw no numbers, but no two tensors share a stream
    constexpr std::uint32_t kMagnitudes = kAdapters + (1U << 30);
    constexpr auto kKinds = static_cast<std::uint32_t>(kParameterKinds);
    return kMagnitudes + static_cast<std::uint32_t>(unit.index) * kKinds +
           static_cast<std::uint32_t>(tensor.kind);
  }
  constexpr auto kFirst = static_cast<std::uint32_t>(ParameterKind::kQueryA);
  constexpr std::uint32_t kOfUnit = static_cast<std::uint32_t>(ParameterKind::kDownB) - kFirst + 1;
  return kAdapters + static_cast<std::uint32_t>(unit.index) * kOfUnit +
         static_cast<std::uint32_t>(tensor.kind) - kFirst;
}

}  // namespace

std::vector<UnitLayout> parameter_layout(const ModelConfig& config, std::int32_t ranks,
                                         const TensorSplit& tensor, const BaseStorage& storage) {
  // The number of layers is only changed by with_shape() (model_shape.h).
  if (!config.layer_options.empty()) {
    TERRACE_CHECK_EQ(config.layer_options.size(), static_cast<std::size_t>(config.layers));
  }
  std::vector<UnitLayout> layout;
  layout.push_back(whole_unit(config, UnitKind::kEmbedding, 0));
  for (std::int64_t layer = 0; layer < config.layers; ++layer) {
    layout.push_back(whole_unit(config, UnitKind::kBlock, layer + 1));
  }
  layout.push_back(whole_unit(config, UnitKind::kHead, config.layers + 1));
  std::uint32_t stream = 0;
  for (UnitLayout& unit : layout) {
    for (ParameterTensor& one : unit.tensors) {
      one.random_stream = is_adapter(one.kind) ? adapter_stream(unit, one) : stream++;
    }
    const UnitLayout whole = arranged(unit, TensorSplit(), 1);
    for (ParameterTensor& one : unit.tensors) {
      one.slice.whole_offset = whole.find(one.kind, one.expert)->offset;
    }
    unit = arranged(unit, tensor, ranks, storage);
  }
  return layout;
}

void check_quantized_parts(const ModelConfig& config, const BaseStorage& storage,
                           const TensorSplit& split, OptionNames name_of_option) {
  if (!storage.form) return;
  for (const UnitLayout& unit : parameter_layout(config, 1, split)) {
    for (const ParameterTensor& tensor : unit.tensors) {
      const bool is_cut = !tensor.trainable && tensor.slice.ranks > 1;
      const bool is_quantized = is_layer_weight(tensor.kind) || is_of_expert(tensor.kind);
      if (!is_cut || !is_quantized || tensor.slice.run % kQuantizedBlock == 0) continue;
      throw ConfigError(
          fmt::format("{} {}: each rank's part of {} has runs of {} numbers, which are not whole "
                      "blocks of the {} that share a scale with {}",
                      name_of_option(Option::kTensorParallel), split.ranks, tensor.name,
                      tensor.slice.run, kQuantizedBlock, name_of_option(Option::kBaseQuantization)),
          fmt::format("give {} a smaller number, or leave {} out",
                      name_of_option(Option::kTensorParallel),
                      name_of_option(Option::kBaseQuantization)));
    }
  }
}

std::int64_t parameter_count(const std::vector<UnitLayout>& layout) {
  std::int64_t count = 0;
  for (const UnitLayout& unit : layout) {
    for (const ParameterTensor& tensor : unit.tensors) count += tensor.elements() / tensor.addends;
  }
  return count;
}

}  // namespace terrace
