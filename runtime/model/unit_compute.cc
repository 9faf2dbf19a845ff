#include "runtime/model/unit_compute.h"

#include <algorithm>
#include <utility>

#include "base/bytes.h"
#include "base/check.h"
#include "runtime/model/dropout.h"
#include "runtime/model/expert_groups.h"
#include "runtime/model/rope_table.h"

namespace terrace {
namespace {

DecoderPart part_of(const ModelConfig& config, std::vector<UnitLayout> layout,
                    const UnitCompute::Options& options) {
  DecoderPart part;
  part.config = config_of_part(config, options.split);
  part.layout = std::move(layout);
  part.batch = options.batch;
  if (options.split.shares_rows) part.batch.row_parts = options.split.ranks;
  part.compute_type = options.compute_type;
  part.split = options.split;
  part.dropout_key = dropout_key(options.dropout_seed);
  part.experts_per_group = options.experts_per_group;
  part.first_token = first_token(config, options.split);
  part.smallest_vocabulary =
      config.vocabulary - (options.split.ranks - 1) * options.split.part_of(config.vocabulary);
  part.sharing = {
      options.split.ranks, options.split.rank, options.split.shares_rows,
      static_cast<std::size_t>(part.batch.rows() * config.width) * size_of(options.compute_type)};
  return part;
}

// Returns the part as the head computes it: only the last row, where keys are kept.
DecoderPart head_part_of(const DecoderPart& part) {
  DecoderPart head = part;
  if (part.batch.keeps_keys()) head.batch.positions = 1;
  return head;
}

}  // namespace

UnitCompute::UnitCompute(const ModelConfig& config, std::vector<UnitLayout> layout,
                         const Options& options, const KernelTable& kernels)
    : part_(part_of(config, std::move(layout), options)), kernels_(kernels) {
  graphs_.push_back(embedding_graph(part_));
  graphs_.push_back(head_graph(head_part_of(part_)));
  graph_numbers_.push_back(0);
  std::vector<BlockShape> known;
  for (std::int64_t layer = 0; layer < config.layers; ++layer) {
    const UnitLayout& unit = part_.layout.at(static_cast<std::size_t>(layer) + 1);
    const BlockShape block = {config.layer(layer), &unit, part_.wants_input_gradient(unit.index)};
    const auto found = std::ranges::find(known, block);
    graph_numbers_.push_back(2 + static_cast<std::size_t>(found - known.begin()));
    if (found != known.end()) continue;
    known.push_back(block);
    graphs_.push_back(block_graph(part_, block));
  }
  graph_numbers_.push_back(1);
}

void UnitCompute::run(const KernelContext& context, const ComputeTask& task,
                      const UnitMemory& memory) {
  if (task.micro_batch < 0) {
    return embedding_backward(context, memory, task.hidden_gradients, task.views);
  }
  std::as_const(*this).run(context, {task.pass, task.step, task.unit}, memory);
}

void UnitCompute::run(const KernelContext& context, const UnitGraph::Where& where,
                      const UnitMemory& memory) const {
  graph_of(where.unit).run(where, kernels_, context, memory);
}

std::size_t UnitCompute::tokens_bytes() const {
  return static_cast<std::size_t>(part_.batch.lists() * part_.batch.rows()) * size_of(DType::kI32);
}

void UnitCompute::embedding_backward(const KernelContext& context, const UnitMemory& memory,
                                     std::span<std::byte* const> hidden_gradients,
                                     std::span<TensorView> views) const {
  const ModelConfig& config = part_.config;
  const UnitLayout& layout = part_.layout.front();
  std::byte* const gradient = memory.of(Role::kGradient);
  const auto view_of = [&](ParameterKind kind, std::int64_t rows) {
    const ParameterTensor* const tensor = layout.find(kind);
    if (tensor == nullptr) return TensorView{};
    std::byte* const begin = gradient + static_cast<std::size_t>(tensor->offset) * sizeof(float);
    return view(tensor->trainable ? begin : nullptr, DType::kF32, rows, config.width);
  };
  const std::size_t count = hidden_gradients.size();
  TERRACE_CHECK_LE(kEmbeddingViews * count, views.size());
  const std::int64_t rows = part_.batch.rows();
  const auto numbers = [&](std::size_t m, RowNumbers list) {
    std::byte* const lists = memory.of(Role::kTokens) + m * tokens_bytes();
    const std::int64_t before = part_.batch.place_of(list) * rows;
    return view(lists + static_cast<std::size_t>(before) * sizeof(std::int32_t), DType::kI32, rows);
  };
  for (std::size_t m = 0; m < count; ++m) {
    views[m] = numbers(m, RowNumbers::kTokens);
    views[count + m] = view(hidden_gradients[m], part_.compute_type, rows, config.width);
    if (part_.batch.has_documents) views[2 * count + m] = numbers(m, RowNumbers::kPositions);
  }
  EmbeddingBackward op;
  op.tokens = views.first(count);
  op.dh = views.subspan(count, count);
  if (part_.batch.has_documents) op.positions = views.subspan(2 * count, count);
  op.dwte = view_of(ParameterKind::kTokenEmbedding, config.vocabulary);
  op.dwpe = view_of(ParameterKind::kPositionEmbedding, config.positions);
  op.sequence = part_.batch.positions;
  op.wte_mode = memory.gradient_mode;
  if (part_.split.ranks > 1) op.first_token = part_.first_token;
  op.scale = part_.embedding_scale();
  op.padding_token = config.padding_token;
  kernels_.embedding_backward(context, op);
  for (const ElementSpan& padding : layout.padding) {
    if (padding.begin >= layout.trained_elements()) continue;
    std::byte* const begin = gradient + static_cast<std::size_t>(padding.begin) * sizeof(float);
    kernels_.fill_zero(context, {view(begin, DType::kF32, padding.end - padding.begin)});
  }
}

std::vector<KernelCost> UnitCompute::kernel_costs(const UnitGraph::Where& where,
                                                  std::int32_t micro_batches) const {
  if (where.pass != UnitPass::kBackward || where.unit != 0) {
    return graph_of(where.unit).kernel_costs(where);
  }
  const UnitLayout& layout = part_.layout.front();
  const double gradient = static_cast<double>(layout.trained_elements()) * sizeof(float);
  const double rows = static_cast<double>(part_.batch.rows() * part_.config.width);
  const double added =
      rows * (static_cast<double>(size_of(part_.compute_type)) + 2 * sizeof(float));
  return {{.bytes = gradient}, {.bytes = added * micro_batches}};
}

void UnitCompute::prepare(const KernelContext& context) const {
  for (const UnitGraph& graph : graphs_) graph.prepare(kernels_, context);
}

// Returns the same number on all ranks, although the last rank's part of the vocabulary may be
// smaller.
std::size_t UnitCompute::workspace_bytes(std::int32_t micro_batches, int workers) const {
  const bool accumulates = micro_batches > 1;
  const UnitLayout& embedding = part_.layout.front();
  const std::int64_t rows = embedding.find(ParameterKind::kTokenEmbedding)->rows;
  std::size_t bytes = 0;
  if (embedding.trains()) {
    bytes = kernels_.embedding_backward_workspace(part_.batch.rows(), micro_batches, rows,
                                                  part_.config.width, workers);
  }
  for (const UnitGraph& graph : graphs_) {
    bytes = std::max(bytes, graph.workspace_bytes(kernels_, workers, accumulates));
  }
  if (part_.split.ranks > 1) {
    DecoderPart other = part_;
    for (const std::int64_t vocabulary : {rows, part_.smallest_vocabulary}) {
      other.config.vocabulary = vocabulary;
      bytes = std::max(bytes, head_graph(other).workspace_bytes(kernels_, workers, accumulates));
    }
  }
  return round_up(bytes, 4096);
}

ComputeModel UnitCompute::model(std::int32_t micro_batches, int workers) const {
  ComputeModel model;
  model.compute_type = part_.compute_type;
  model.hidden_bytes = static_cast<std::size_t>(part_.batch.own_rows() * part_.config.width) *
                       size_of(part_.compute_type);
  model.tokens_bytes = tokens_bytes();
  model.constants_bytes = rope_tables() * rope_table_elements() * sizeof(float);
  model.workspace_bytes = workspace_bytes(micro_batches, workers);
  if (part_.config.expert_layers() > 0) {
    model.router_sums = router_sums_of(part_.config.experts.count);
  }
  model.tensor = part_.sharing;
  for (const UnitLayout& layout : part_.layout) add_unit(layout, model);
  // The head uses the embedding's weight.
  if (part_.config.tied) model.units.back().groups.push_back(model.units.front().groups.front());
  return model;
}

void UnitCompute::add_unit(const UnitLayout& layout, ComputeModel& model) const {
  const auto stream = static_cast<std::int32_t>(layout.index);
  UnitModel unit;
  graph_of(layout.index).describe(unit);
  ParameterGroup own = {.padded_elements = layout.shared_elements(),
                        .frozen_elements = layout.frozen_elements,
                        .quantized = layout.quantized,
                        .decayed_elements = layout.decayed_elements(),
                        .stream = stream,
                        .replicated = layout.replicated,
                        .summed = layout.summed};
  const bool is_divided = part_.experts_per_group > 0;
  TERRACE_CHECK(is_divided || !layout.experts.are_quantized);
  if (layout.experts.count > 0 && !is_divided) {
    own.padded_elements = own.frozen_elements = layout.padded_elements;  // it does not train
    own.decayed_elements = 0;
  }
  model.add(std::move(unit), own);
  if (!is_divided) return;
  for (const ExpertGroup& experts : expert_groups(layout, part_.experts_per_group)) {
    const std::int64_t elements = experts.elements.end - experts.elements.begin;
    const std::int64_t trained = layout.experts.train ? elements : 0;
    model.add_group({.padded_elements = elements,
                     .frozen_elements = elements - trained,
                     .quantized = {0, layout.experts.are_quantized ? elements : 0},
                     .decayed_elements = trained,
                     .stream = stream,
                     .first_element = experts.elements.begin});
  }
}

std::size_t UnitCompute::rope_tables() const {
  return part_.batch.row_angles > 0 ? 0 : part_.config.ropes.size();
}

std::size_t UnitCompute::rope_table_elements() const {
  return static_cast<std::size_t>(part_.batch.table_positions() * part_.config.rotated_width());
}

std::vector<float> UnitCompute::constants() const {
  return constants(part_.batch.table_positions());
}

std::vector<float> UnitCompute::constants(std::int64_t length) const {
  const auto& config = part_.config;
  const std::int64_t width = config.rotated_width();
  const std::size_t elements = rope_table_elements();
  std::vector<float> tables(rope_tables() * elements);
  for (std::size_t i = 0; i < rope_tables(); ++i) {
    fill_rope_table(config.ropes[i], length, width,
                    std::span(tables).subspan(i * elements, elements));
  }
  return tables;
}

}  // namespace terrace
