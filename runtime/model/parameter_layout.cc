#include "runtime/model/parameter_layout.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <unordered_map>

#include "base/check.h"
#include "base/error.h"
#include "runtime/model/stored_elements.h"
#include "runtime/model/trainable.h"

namespace terrace {
namespace {

// Returns the rank's part of a tensor: shape and slice.
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

// Sets how a rank's part of a frozen matrix of a block is kept.
void quantize(ParameterTensor& part, const BaseStorage& storage) {
  QuantizedShape shape = {.form = storage.form.value(), .elements = part.elements()};
  if (part.slice.ranks > 1) {
    TERRACE_CHECK_EQ(part.slice.run % kQuantizedBlock, 0);
    shape.run_blocks = part.slice.run / kQuantizedBlock;
    shape.ranks = part.slice.ranks;
    shape.rank = part.slice.rank;
  }
  part.quantized_elements = shape.size_bytes() / storage.element_bytes;
  part.quantized = shape;
}

// Puts the tensors of a unit one after the other, as a rank has them.
class UnitArrangement {
 public:
  UnitArrangement(const UnitLayout& whole, const TensorSplit& split, std::int32_t ranks,
                  const BaseStorage& storage = BaseStorage())
      : whole_(whole), split_(split), storage_(storage), grain_(ranks * kBlockElements) {
    unit_.kind = whole.kind;
    unit_.index = whole.index;
  }

  UnitLayout run() {
    add_shared();
    for (const ParameterTensor& tensor : whole_.tensors) {
      if (tensor.kind == ParameterKind::kExpertGate) add_expert(tensor.expert);
    }
    return std::move(unit_);
  }

 private:
  // Adds everything that is not of experts.
  void add_shared() {
    add_all(true);
    const std::int64_t trained = pad(0);
    unit_.padded_elements = trained;
    if (!unit_.replicated.empty()) unit_.replicated.end = trained;
    const bool has_frozen = std::ranges::any_of(whole_.tensors, [](const ParameterTensor& tensor) {
      return !tensor.trainable && !is_of_expert(tensor.kind);
    });
    if (!has_frozen) return;
    unit_.elements = trained;
    add_all(false);
    unit_.padded_elements = pad(trained);
    unit_.frozen_elements = unit_.padded_elements - trained;
  }

  void add_expert(std::int32_t expert) {
    const std::int64_t begin = unit_.padded_elements;
    unit_.elements = begin;
    for (const ParameterTensor& tensor : whole_.tensors) {
      if (!is_of_expert(tensor.kind) || tensor.expert != expert) continue;
      add(tensor);
      unit_.experts.train = tensor.trainable;
    }
    unit_.padded_elements = pad(begin);
    unit_.experts.elements = unit_.padded_elements - begin;
    ++unit_.experts.count;
  }

  void add_all(bool trainable) {
    const auto add_those = [&](auto wanted) {
      for (const ParameterTensor& tensor : whole_.tensors) {
        const bool is_one =
            tensor.trainable == trainable && !is_quantized(tensor) && !is_of_expert(tensor.kind);
        if (is_one && wanted(tensor)) add(tensor);
      }
    };
    if (!trainable) add_quantized();
    if (split_.ranks == 1) return add_those([](const ParameterTensor&) { return true; });
    add_those([](const ParameterTensor& t) { return t.cut != TensorCut::kReplicated; });
    const std::int64_t end = unit_.elements;
    unit_.elements = (end + kBlockElements - 1) / kBlockElements * kBlockElements;
    if (end < unit_.elements) unit_.padding.push_back({end, unit_.elements});
    const std::int64_t begin = unit_.elements;
    add_those([](const ParameterTensor& t) { return t.cut == TensorCut::kReplicated; });
    if (trainable) unit_.replicated = {begin, unit_.elements};
  }

  bool is_quantized(const ParameterTensor& tensor) const {
    return storage_.form && !tensor.trainable && is_layer_weight(tensor.kind);
  }

  void add_quantized() {
    unit_.quantized.begin = unit_.elements;
    for (const ParameterTensor& tensor : whole_.tensors) {
      if (!is_quantized(tensor)) continue;
      ParameterTensor part = part_of(tensor, split_);
      quantize(part, storage_);
      part.offset = unit_.elements;
      unit_.elements += part.place_elements();
      unit_.tensors.push_back(std::move(part));
    }
    unit_.quantized.end = unit_.elements;
  }

  void add(const ParameterTensor& tensor) {
    ParameterTensor part = part_of(tensor, split_);
    part.offset = unit_.elements;
    unit_.elements += part.elements();
    const std::int64_t here = part.offset + part.slice.elements_of(split_.rank);
    if (here < unit_.elements) unit_.padding.push_back({here, unit_.elements});
    const bool is_share = part.gradient == GradientShare::kHeads ||
                          part.gradient == GradientShare::kPart ||
                          (part.gradient == GradientShare::kRows && split_.shares_rows);
    if (is_share && part.trainable && split_.ranks > 1) {
      if (unit_.summed.empty()) unit_.summed.begin = part.offset;
      unit_.summed.end = unit_.elements;
    }
    unit_.tensors.push_back(std::move(part));
  }

  // Pads what follows `begin` to whole blocks, and returns where it then ends.
  std::int64_t pad(std::int64_t begin) {
    const std::int64_t length = unit_.elements - begin;
    const std::int64_t end = begin + (length + grain_ - 1) / grain_ * grain_;
    if (unit_.elements < end) unit_.padding.push_back({unit_.elements, end});
    return end;
  }

  const UnitLayout& whole_;
  const TensorSplit& split_;
  const BaseStorage& storage_;
  const std::int64_t grain_;
  UnitLayout unit_;
};

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

  void expert_matrix(ParameterKind kind, std::int64_t expert, std::int64_t rows,
                     std::int64_t columns) {
    as_matrix(add(kind, rows, columns, expert), TensorCut::kReplicated);
  }

  // Adds the biases of all experts, one a row.
  void expert_biases(ParameterKind kind, std::int64_t columns) {
    add(kind, config_.experts.count, columns).init = Init::kZeros;
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
      return !config_.adapter.has_target(matrix.stored_name);
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
    return put(std::move(tensor));
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

void add_expert_matrices(const ModelConfig& config, UnitBuilder& unit) {
  TERRACE_CHECK(config.feed_forward != FeedForward::kGelu);
  const std::int64_t inner = config.experts.intermediate;
  unit.matrix(ParameterKind::kRouter, config.experts.count, config.width, TensorCut::kReplicated);
  for (std::int64_t expert = 0; expert < config.experts.count; ++expert) {
    unit.expert_matrix(ParameterKind::kExpertGate, expert, inner, config.width);
    unit.expert_matrix(ParameterKind::kExpertUp, expert, inner, config.width);
    unit.expert_matrix(ParameterKind::kExpertDown, expert, config.width, inner);
  }
}

void add_expert_biases(const ModelConfig& config, UnitBuilder& unit) {
  unit.starts_random(unit.bias(ParameterKind::kRouterBias, config.experts.count));
  unit.expert_biases(ParameterKind::kExpertGateBias, config.experts.intermediate);
  unit.expert_biases(ParameterKind::kExpertUpBias, config.experts.intermediate);
  unit.expert_biases(ParameterKind::kExpertDownBias, config.width);
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
    stored.rows += tensor.rows;
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

const ParameterTensor* UnitLayout::find(ParameterKind wanted, std::int32_t expert) const {
  const auto found = std::ranges::find_if(tensors, [&](const ParameterTensor& tensor) {
    return tensor.kind == wanted && tensor.expert == expert;
  });
  return found == tensors.end() ? nullptr : &*found;
}

std::int64_t UnitLayout::decayed_elements() const {
  std::int64_t decayed = 0;
  bool others = false;
  for (const ParameterTensor& tensor : tensors) {
    if (!tensor.trainable || is_of_expert(tensor.kind)) break;  // so are those that follow
    TERRACE_CHECK(!tensor.decay || !others);                    // matrices come first
    others = others || !tensor.decay;
    if (tensor.decay) decayed = tensor.offset + tensor.elements();
  }
  return decayed;
}

std::vector<ElementSpan> UnitLayout::trained_spans() const {
  std::vector<ElementSpan> spans;
  for (const ParameterTensor& tensor : tensors) {
    if (!tensor.trainable) continue;
    if (spans.empty() || spans.back().end != tensor.offset) {
      spans.push_back({tensor.offset, tensor.offset});
    }
    spans.back().end += tensor.elements();
  }
  return spans;
}

std::int64_t UnitLayout::trained_count() const {
  std::int64_t count = 0;
  for (const ElementSpan& span : trained_spans()) count += span.end - span.begin;
  return count;
}

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
    const UnitLayout whole = UnitArrangement(unit, TensorSplit(), 1).run();
    for (ParameterTensor& one : unit.tensors) {
      one.slice.whole_offset = whole.find(one.kind, one.expert)->offset;
    }
    unit = UnitArrangement(unit, tensor, ranks, storage).run();
  }
  return layout;
}

void check_quantized_parts(const ModelConfig& config, const BaseStorage& storage,
                           const TensorSplit& split, OptionNames name_of_option) {
  if (!storage.form) return;
  for (const UnitLayout& unit : parameter_layout(config, 1, split)) {
    for (const ParameterTensor& tensor : unit.tensors) {
      const bool is_cut = !tensor.trainable && tensor.slice.ranks > 1;
      if (!is_cut || !is_layer_weight(tensor.kind)) continue;
      if (tensor.slice.run % kQuantizedBlock == 0) continue;
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
    for (const ParameterTensor& tensor : unit.tensors) count += tensor.elements();
  }
  return count;
}

}  // namespace terrace
