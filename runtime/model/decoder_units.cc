#include "runtime/model/decoder_units.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "base/check.h"
#include "runtime/model/experts_layer.h"
#include "runtime/model/layers.h"
#include "runtime/model/shared_expert.h"

namespace terrace {
namespace {

LayerSite site_of(const DecoderPart& part, const UnitLayout& layout, UnitGraph& graph) {
  return {graph,
          part.config,
          layout,
          part.batch,
          part.compute_type,
          part.split,
          part.dropout_key,
          part.experts_per_group};
}

NormWeights norm_weights(const LayerSite& site, ParameterKind weight, ParameterKind bias) {
  const std::int64_t width = site.config.width;
  return {site.weight(weight, width), site.weight(bias, width)};
}

// Returns the norm of x, or x itself where the unit has no such norm.
TensorId norm_if(const LayerSite& site, TensorId x, ParameterKind weight, ParameterKind bias) {
  if (site.layout.find(weight) == nullptr) return x;
  return norm(site, x, norm_weights(site, weight, bias));
}

// Makes the call that adds positions to this rank's rows of the embedding.
UnitCall add_positions_call(const LayerSite& site, TensorId hidden, TensorId table) {
  const std::int64_t sequence = site.batch.positions;
  const std::int64_t own_rows = site.batch.own_rows();
  const std::int64_t first_row = site.split.shares_rows ? site.split.rank * own_rows : 0;
  const TensorId row_positions = site.numbers(RowNumbers::kPositions);
  if (row_positions != kNoTensor) {
    UnitTensor& own = site.graph.at(row_positions);
    own.shape[0] = own_rows;
    own.offset += static_cast<std::size_t>(first_row) * sizeof(std::int32_t);
  }
  UnitCall call;
  call.reads = {hidden, table};
  if (row_positions != kNoTensor) call.reads.push_back(row_positions);
  call.writes = {hidden};
  call.run = [=](const UnitRun& run) {
    run.kernels.add_positions(run.context, {run.view(hidden), run.view(table), sequence, first_row,
                                            run.view(row_positions)});
  };
  return call;
}

TensorId attend(const LayerSite& site, TensorId x, const LayerOptions& layer) {
  const ModelConfig& config = site.config;
  const std::int64_t columns = config.qkv_columns();
  using Kind = ParameterKind;
  const TensorId qkv =
      linear(site, x,
             {site.joined_weight({Kind::kQuery, Kind::kKey, Kind::kValue}),
              site.joined_weight({Kind::kQueryBias, Kind::kKeyBias, Kind::kValueBias}),
              site.adapters({Kind::kQuery, Kind::kKey, Kind::kValue})},
             site.all_rows("qkv", columns));
  const TensorId attended = attention(site, qkv, query_key_norms(site, qkv), layer);
  return linear(site, attended,
                {site.weight(ParameterKind::kProjection, config.width),
                 site.weight(ParameterKind::kProjectionBias, config.width),
                 site.adapters({ParameterKind::kProjection}), true},
                site.all_rows("partial", config.width));
}

// Adds the feed-forward that the layer's gate, up and down matrices make. gate and up together have
// `columns` rows.
TensorId feed_forward(const LayerSite& site, TensorId x, std::int64_t columns) {
  const std::int64_t width = site.config.width;
  const TensorId up =
      linear(site, x,
             {site.joined_weight({ParameterKind::kGate, ParameterKind::kUp}),
              site.joined_weight({ParameterKind::kGateBias, ParameterKind::kUpBias}),
              site.adapters({ParameterKind::kGate, ParameterKind::kUp})},
             site.all_rows("up", columns));
  return linear(
      site, activation(site, up),
      {site.weight(ParameterKind::kDown, width), site.weight(ParameterKind::kDownBias, width),
       site.adapters({ParameterKind::kDown}), true},
      site.all_rows("partial", width));
}

// Returns the chosen experts' result plus the result of the expert that all rows have.
TensorId all_experts(const LayerSite& site, TensorId x) {
  const ExpertOptions& options = site.config.experts;
  if (options.shared_intermediate == 0) return experts(site, x);
  // The shared expert comes first, so that its backward is the last one. It is then in the part of
  // the backward in which the unit's other shared parameters get their gradients.
  TensorId shared = feed_forward(site, x, 2 * options.shared_intermediate);
  if (options.gates_shared) shared = gated_by_share(site, x, shared);
  const TensorId chosen = experts(site, x);
  return add(site, shared, chosen, site.all_rows("all experts", site.config.width), 1.0F);
}

// Returns the result of the layer's feed-forward, or of its experts.
TensorId feed_forward_or_experts(const LayerSite& site, TensorId x, const LayerOptions& layer) {
  if (layer.has_experts) return all_experts(site, x);
  return feed_forward(site, x, site.config.up_columns());
}

// The tensors that the calls of the head touch.
struct HeadTensors {
  TensorId hidden, weight, dweight, targets, logits, losses;
  TensorId sums = kNoTensor;  // of all ranks' parts of the vocabulary
  std::int64_t first_token = 0;
  float logit_scale = 1;
  float soft_cap = 0;
};

HeadLoss whole_loss(const UnitRun& run, const HeadTensors& t) {
  HeadLoss op;
  op.h = run.view(t.hidden);
  op.weight = run.view(t.weight);
  op.target = run.view(t.targets);
  op.logits = run.view(t.logits);
  op.gradient_scale = run.memory.gradient_scale;
  op.loss_sum = run.view(t.losses).as<double>();
  op.logit_scale = t.logit_scale;
  op.soft_cap = t.soft_cap;
  return op;
}

HeadPartLoss part_loss(const UnitRun& run, const HeadTensors& t) {
  HeadPartLoss op;
  op.h = run.view(t.hidden);
  op.weight = run.view(t.weight);
  op.target = run.view(t.targets);
  op.sums = run.view(t.sums);
  op.first_token = t.first_token;
  op.gradient_scale = run.memory.gradient_scale;
  op.loss_sum = run.view(t.losses).as<double>();
  op.logit_scale = t.logit_scale;
  op.soft_cap = t.soft_cap;
  return op;
}

// Returns the op with the gradient of its input where that is wanted, and of its weight where that
// trains.
template <typename Op>
Op with_gradients(Op op, const UnitRun& run, const HeadTensors& t, TensorId dhidden) {
  if (dhidden == kNoTensor) return op;
  op.dh = run.view(dhidden);
  op.dweight = run.view(t.dweight);
  op.mode = run.mode(t.dweight);
  return op;
}

// Makes the call that computes the loss from these logits.
UnitCall loss_call(const HeadTensors& t, TensorId dhidden, const HeadLogits& logits) {
  UnitCall call;
  call.reads = {t.hidden, t.weight, t.targets};
  if (t.sums != kNoTensor) call.reads.push_back(t.sums);
  call.writes = {t.losses};
  if (dhidden != kNoTensor) call.writes.push_back(dhidden);
  if (dhidden != kNoTensor && t.dweight != kNoTensor) call.writes.push_back(t.dweight);
  call.of_evaluation = dhidden == kNoTensor;
  call.scales_loss = !call.of_evaluation;
  call.logits = logits;
  if (!call.of_evaluation) call.chunk_sum = t.dweight;
  if (t.sums == kNoTensor) {
    const auto op = [=](const UnitRun& run) {
      return with_gradients(whole_loss(run, t), run, t, dhidden);
    };
    call.run = [op](const UnitRun& run) { run.kernels.head_loss(run.context, op(run)); };
    call.workspace = [op](const UnitRun& run, int workers) {
      return run.kernels.head_loss_workspace(op(run), workers);
    };
    return call;
  }
  const auto op = [=](const UnitRun& run) {
    return with_gradients(part_loss(run, t), run, t, dhidden);
  };
  call.run = [op](const UnitRun& run) { run.kernels.head_part_loss(run.context, op(run)); };
  call.workspace = [op](const UnitRun& run, int workers) {
    return run.kernels.head_part_loss_workspace(op(run), workers);
  };
  return call;
}

// Computes and gathers the sums that the ranks' parts of the vocabulary must know of each other.
TensorId exchange_sums(const LayerSite& site, const HeadTensors& t, double flops) {
  const std::int64_t rows = site.batch.rows();
  const TensorId own = site.per_row("row sums", rows, kLogitSums);
  UnitCall sums;
  sums.reads = {t.hidden, t.weight, t.targets};
  sums.writes = {own};
  const auto op = [t, own](const UnitRun& run) {
    return HeadSums{run.view(t.hidden), run.view(t.weight), run.view(t.targets), run.view(own),
                    t.first_token,      t.logit_scale,      t.soft_cap};
  };
  sums.run = [op](const UnitRun& run) { run.kernels.head_sums(run.context, op(run)); };
  sums.workspace = [op](const UnitRun& run, int workers) {
    return run.kernels.head_sums_workspace(op(run), workers);
  };
  sums.flops = flops;
  site.graph.call(std::move(sums));
  const TensorId all = site.graph.add({.name = "all row sums",
                                       .dtype = DType::kF32,
                                       .shape = {site.split.ranks, rows, kLogitSums, 1}});
  site.graph.exchange(UnitStep::Kind::kGather, own, all);
  return all;
}

HeadTensors head_tensors(const LayerSite& site, const DecoderPart& part, TensorId hidden) {
  UnitGraph& graph = site.graph;
  const ModelConfig& config = part.config;
  const UnitLayout& owner = config.tied ? part.layout.front() : site.layout;
  const ParameterKind kind =
      config.tied ? ParameterKind::kTokenEmbedding : ParameterKind::kHeadWeight;
  const auto at = [&](const char* name, DType dtype, std::int64_t rows, Role role) {
    const std::int64_t columns = role == Role::kLogits ? config.vocabulary : 1;
    return graph.add({.name = name, .dtype = dtype, .shape = {rows, columns, 1, 1}, .role = role});
  };
  HeadTensors t;
  t.hidden = hidden;
  t.weight = site.parameter(owner, kind, config.vocabulary, Role::kParameters);
  t.dweight = site.parameter(owner, kind, config.vocabulary, Role::kGradient);
  t.targets = site.numbers(RowNumbers::kTargets);
  t.logits = at("logits", DType::kF32, part.batch.rows(), Role::kLogits);
  t.losses = at("loss", DType::kF64, 1, Role::kLosses);
  t.first_token = part.first_token;
  t.logit_scale = config.logit_scale;
  t.soft_cap = config.logit_soft_cap;
  return t;
}

}  // namespace

float DecoderPart::embedding_scale() const {
  const float scale = config.embedding_scale;
  if (!config.rounds_embedding_scale || compute_type == DType::kF32) return scale;
  return compute_type == DType::kF16 ? to_float(to_fp16_nearest_even(scale))
                                     : to_float(to_bf16_nearest_even(scale));
}

bool DecoderPart::wants_input_gradient(std::int64_t unit) const {
  const auto trains = [](const UnitLayout& one) { return one.trains(); };
  return std::any_of(layout.begin(), layout.begin() + unit, trains);
}

bool BlockShape::operator==(const BlockShape& other) const {
  const auto is_same = [](const ParameterTensor& a, const ParameterTensor& b) {
    return a.kind == b.kind && a.expert == b.expert && a.offset == b.offset &&
           a.trainable == b.trainable && a.rows == b.rows && a.columns == b.columns &&
           a.adapter_scale == b.adapter_scale;
  };
  return options == other.options && has_backward_below == other.has_backward_below &&
         std::ranges::equal(layout->tensors, other.layout->tensors, is_same);
}

UnitGraph embedding_graph(const DecoderPart& part) {
  UnitGraph graph(UnitKind::kEmbedding, part.sharing);
  const LayerSite site = site_of(part, part.layout.front(), graph);
  const ModelConfig& config = part.config;
  const bool is_part = part.split.ranks > 1;
  const TensorId tokens = site.numbers(RowNumbers::kTokens);
  const TensorId rows = site.parameter(site.layout, ParameterKind::kTokenEmbedding,
                                       config.vocabulary, Role::kParameters);
  const TensorId positions = site.parameter(site.layout, ParameterKind::kPositionEmbedding,
                                            config.positions, Role::kParameters);
  const TensorId out = site.boundary(Role::kHiddenOut, "hidden", config.width);
  const TensorId found = part.split.shares_rows ? site.all_rows("partial", config.width) : out;
  const TensorId row_positions =
      positions == kNoTensor ? kNoTensor : site.numbers(RowNumbers::kPositions);
  UnitCall lookup;
  lookup.reads = {tokens, rows};
  if (row_positions != kNoTensor && !is_part) lookup.reads.push_back(row_positions);
  lookup.writes = {found};
  const std::int64_t sequence = part.batch.positions;
  const auto first_token =
      is_part ? std::optional<std::int64_t>(part.first_token) : std::optional<std::int64_t>();
  const float scale = part.embedding_scale();
  lookup.run = [=](const UnitRun& run) {
    run.kernels.embedding_forward(
        run.context, {run.view(tokens), run.view(rows),
                      is_part ? TensorView{} : run.view(positions), run.view(found), sequence,
                      first_token, is_part ? TensorView{} : run.view(row_positions), scale});
  };
  graph.begin_step("lookup");
  graph.call(std::move(lookup));
  if (is_part) graph.exchange(UnitStep::Kind::kSum, found, out);
  if (is_part && positions != kNoTensor) {
    graph.begin_step("positions");
    graph.call(add_positions_call(site, out, positions));
  }
  graph.finish(kNoTensor);
  return graph;
}

namespace {

// Adds the layer's two branches to x, one after the other, and writes the result into `out`.
void sequential_branches(const LayerSite& site, TensorId x, TensorId out,
                         const LayerOptions& layer) {
  const std::int64_t width = site.config.width;
  const float factor = site.config.residual_scale;
  const TensorId normed1 =
      norm_if(site, x, ParameterKind::kAttentionNorm, ParameterKind::kAttentionNormBias);
  const Branch attention = enter(site, normed1, "attention", "norm1");
  const TensorId attended = leave(site, attention, attend(site, attention.all, layer), "norm2");
  const TensorId middle = add(
      site, x,
      norm_if(site, attended, ParameterKind::kAttentionOutNorm, ParameterKind::kAttentionNormBias),
      site.own_rows("middle", width), factor);
  const TensorId normed2 =
      norm_if(site, middle, ParameterKind::kFeedForwardNorm, ParameterKind::kFeedForwardNormBias);
  const Branch mlp = enter(site, normed2, "mlp", "norm2");
  const TensorId partial = feed_forward_or_experts(site, mlp.all, layer);
  if (!layer.has_experts) site.graph.on_backward({}, [site] { clear_padding(site); });
  const TensorId fed = leave(site, mlp, partial, "residual");
  add(site, middle,
      norm_if(site, fed, ParameterKind::kFeedForwardOutNorm, ParameterKind::kFeedForwardNormBias),
      out, factor);
}

// Adds both branches of one norm to x, and writes the result into `out`. Tensor-parallel ranks
// first add up their parts of the two branches, so that they exchange once.
void parallel_branches(const LayerSite& site, TensorId x, TensorId out, const LayerOptions& layer) {
  TERRACE_CHECK(site.config.norm_places == NormPlaces::kBefore);  // other places have no meaning
  const TensorId normed =
      norm(site, x,
           norm_weights(site, ParameterKind::kAttentionNorm, ParameterKind::kAttentionNormBias));
  const Branch both = enter(site, normed, "branches", "norm1");
  const TensorId attended = attend(site, both.all, layer);
  const TensorId fed = feed_forward_or_experts(site, both.all, layer);
  if (!layer.has_experts) site.graph.on_backward({}, [site] { clear_padding(site); });
  const TensorId partial =
      add(site, attended, fed, site.all_rows("partial", site.config.width), 1.0F);
  add(site, x, leave(site, both, partial, "residual"), out, site.config.residual_scale);
}

}  // namespace

UnitGraph block_graph(const DecoderPart& part, const BlockShape& block) {
  UnitGraph graph(UnitKind::kBlock, part.sharing);
  const LayerSite site = site_of(part, *block.layout, graph);
  const LayerOptions& layer = block.options;
  const std::int64_t width = part.config.width;
  const TensorId x = site.boundary(Role::kHidden, "input", width);
  const TensorId out = site.boundary(Role::kHiddenOut, "output", width);
  graph.set_input(x);
  graph.begin_step("norm1");
  if (part.config.branch_order == BranchOrder::kParallel) {
    parallel_branches(site, x, out, layer);
  } else {
    sequential_branches(site, x, out, layer);
  }
  graph.set_gradient(out, site.boundary(Role::kHiddenGradient, "output gradient", width));
  const bool passes_on = block.has_backward_below;
  graph.finish(passes_on ? site.boundary(Role::kHiddenGradientOut, "input gradient", width)
                         : kNoTensor);
  return graph;
}

UnitGraph head_graph(const DecoderPart& part) {
  UnitGraph graph(UnitKind::kHead, part.sharing);
  const LayerSite site = site_of(part, part.layout.back(), graph);
  const ModelConfig& config = part.config;
  const TensorId x = site.boundary(Role::kHidden, "input", config.width);
  graph.set_input(x);
  graph.begin_step("norm");
  const TensorId normed =
      norm(site, x, norm_weights(site, ParameterKind::kFinalNorm, ParameterKind::kFinalNormBias));
  const Branch products = enter(site, normed, "sums", "norm backward");
  HeadTensors t = head_tensors(site, part, products.all);
  const HeadLogits logits = {part.batch.rows(),
                             part.layout.front().find(ParameterKind::kTokenEmbedding)->rows};
  // The flops of one product. The backward has three products, or two where the weight is frozen.
  const double flops = 2.0 * logits.elements() * static_cast<double>(config.width);
  const bool is_part = part.split.ranks > 1;
  if (is_part) t.sums = exchange_sums(site, t, flops);
  graph.begin_step("loss");
  UnitCall evaluation = loss_call(t, kNoTensor, logits);
  evaluation.flops = is_part ? 0 : flops;
  graph.call(std::move(evaluation));
  graph.on_backward({products.all}, [site, t, products, logits, flops] {
    site.graph.begin_step("loss");
    clear_padding(site);
    const TensorId dhidden = site.all_rows("partial", site.config.width);
    UnitCall loss = loss_call(t, dhidden, logits);
    loss.flops = (t.dweight == kNoTensor ? 2 : 3) * flops;
    site.graph.call(std::move(loss));
    site.graph.set_gradient(products.all, dhidden);
  });
  const bool passes_on = part.wants_input_gradient(site.layout.index);
  graph.finish(passes_on ? site.boundary(Role::kHiddenGradientOut, "input gradient", config.width)
                         : kNoTensor);
  return graph;
}

}  // namespace terrace
