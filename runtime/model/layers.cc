#include "runtime/model/layers.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "base/check.h"

namespace terrace {
namespace {

// Some columns of a matrix.
struct Columns {
  TensorId matrix = kNoTensor;
  std::int64_t first = 0;
  std::int64_t width = 0;

  StridedRows of(const UnitRun& run) const {
    return matrix == kNoTensor ? StridedRows{} : columns_of(run.view(matrix), first, width);
  }
};

// The tensors that the calls of a norm touch. Only layer norms have a mean and a bias.
struct NormTensors {
  Columns x, y;
  TensorId rstd = kNoTensor;
  TensorId mean = kNoTensor;
  NormWeights weights;
  NormOptions options;
  // Set where tensor-parallel ranks divide the width: the sums of all parts.
  TensorId squares = kNoTensor;
  std::int64_t total_width = 0;
};

UnitCall norm_forward(const NormTensors& t) {
  UnitCall call;
  call.reads = {t.x.matrix, t.weights.weight.value};
  call.writes = {t.y.matrix, t.rstd};
  if (t.squares != kNoTensor) call.reads.push_back(t.squares);
  if (!t.options.has_mean) {
    call.run = [t](const UnitRun& run) {
      run.kernels.rms_norm_forward(
          run.context,
          {t.x.of(run), run.view(t.weights.weight.value), t.y.of(run), run.view(t.rstd),
           t.options.epsilon, t.options.form, run.view(t.squares), t.total_width});
    };
    return call;
  }
  call.writes.push_back(t.mean);
  call.run = [t](const UnitRun& run) {
    run.kernels.layer_norm_forward(
        run.context,
        {run.view(t.x.matrix), run.view(t.weights.weight.value), run.view(t.weights.bias.value),
         run.view(t.y.matrix), run.view(t.mean), run.view(t.rstd), t.options.epsilon});
  };
  return call;
}

// The tensors of a norm's gradients. `along`, of a divided width, has the sums of all parts.
struct NormGradients {
  Columns dy, dx;
  TensorId dresidual = kNoTensor;
  TensorId along = kNoTensor;
};

UnitCall rms_backward(const NormTensors& t, const NormGradients& g) {
  const TensorId dweight = t.weights.weight.gradient;
  UnitCall call;
  call.run = [=](const UnitRun& run) {
    const TensorView dresidual = run.view(g.dresidual);
    run.kernels.rms_norm_backward(
        run.context,
        {g.dy.of(run), t.x.of(run), run.view(t.weights.weight.value), run.view(t.rstd),
         dresidual.empty() ? StridedRows{} : whole_rows(dresidual), g.dx.of(run), run.view(dweight),
         t.options.form, run.mode(dweight), run.view(g.along), t.total_width});
  };
  return call;
}

UnitCall layer_norm_backward(const NormTensors& t, const NormGradients& g) {
  const TensorId dweight = t.weights.weight.gradient;
  UnitCall call;
  call.reads = {t.mean};
  call.run = [=](const UnitRun& run) {
    run.kernels.layer_norm_backward(
        run.context,
        {run.view(g.dy.matrix), run.view(t.x.matrix), run.view(t.weights.weight.value),
         run.view(t.mean), run.view(t.rstd), run.view(g.dresidual), run.view(g.dx.matrix),
         run.view(dweight), run.view(t.weights.bias.gradient), run.mode(dweight)});
  };
  return call;
}

// Returns `t` with a gradient for every weight: kernels write those of frozen ones to scratch.
NormTensors with_all_gradients(UnitGraph& graph, NormTensors t) {
  for (Weight* const weight : {&t.weights.weight, &t.weights.bias}) {
    if (weight->value == kNoTensor || weight->gradient != kNoTensor) continue;
    weight->gradient = graph.add({.name = "unwanted gradient",
                                  .dtype = DType::kF32,
                                  .shape = graph.at(weight->value).shape});
  }
  return t;
}

UnitCall norm_backward(const NormTensors& t, const NormGradients& g) {
  UnitCall call = t.options.has_mean ? layer_norm_backward(t, g) : rms_backward(t, g);
  call.reads.insert(call.reads.end(), {g.dy.matrix, t.x.matrix, t.weights.weight.value, t.rstd});
  if (g.dresidual != kNoTensor) call.reads.push_back(g.dresidual);
  if (g.along != kNoTensor) call.reads.push_back(g.along);
  call.writes = {g.dx.matrix, t.weights.weight.gradient};
  const TensorId dbias = t.weights.bias.gradient;
  if (t.options.has_mean && dbias != kNoTensor) call.writes.push_back(dbias);
  call.workspace = [t](const UnitRun& run, int workers) {
    const std::int64_t width = run.view(t.weights.weight.value).elements();
    return run.kernels.norm_backward_workspace(run.view(t.rstd).elements(), width, workers);
  };
  return call;
}

// The tensors that attention touches, and its numbers. Queries and keys are columns of q|k|v
// itself, or, where they have norms, of the norms' results.
struct AttentionTensors {
  Columns q, k, v;
  TensorId attended = kNoTensor;
  TensorId log_sum_exp = kNoTensor;
  TensorId table = kNoTensor;  // of rotary embedding; none: positions are not rotated
  // Set where sequences hold documents; `positions` is also set where keys are kept.
  TensorId positions = kNoTensor;
  TensorId first_keys = kNoTensor;
  // Keys and values of all rows that are kept, side by side. The new ones are written after them.
  TensorId kept = kNoTensor;
  AttentionShape shape;
  AttentionRule rule;
  std::int64_t rotary_width = 0;

  Columns kept_keys() const { return {kept, 0, k.width}; }
  Columns kept_values() const { return {kept, k.width, v.width}; }
};

// Rotates `queries` and `keys`, or rotates their gradients back.
void rotate(const UnitRun& run, const AttentionTensors& t, const Columns& queries,
            const Columns& keys, bool inverse) {
  if (t.table == kNoTensor) return;
  for (const Columns& heads : {queries, keys}) {
    Rope rope;
    rope.heads = heads.of(run);
    rope.table = run.view(t.table);
    rope.positions = run.view(t.positions);
    rope.sequence = rope.table.elements() / t.rotary_width;
    rope.head_width = t.shape.head_width;
    rope.rotary_width = t.rotary_width;
    rope.inverse = inverse;
    run.kernels.rope(run.context, rope);
  }
}

AttentionRule rule_of(const UnitRun& run, const AttentionTensors& t) {
  AttentionRule rule = t.rule;
  rule.first_keys = run.view(t.first_keys);
  return rule;
}

// Adds the tensors that attention reads besides activations.
void add_numbers(const AttentionTensors& t, std::vector<TensorId>& reads) {
  for (const TensorId tensor : {t.table, t.positions, t.first_keys}) {
    if (tensor != kNoTensor) reads.push_back(tensor);
  }
}

// Returns the op with `kept_rows` rows of keys and values before the new ones.
AttentionForward attention_forward_op(const UnitRun& run, const AttentionTensors& t,
                                      std::int64_t kept_rows) {
  AttentionForward op = {t.shape,
                         rule_of(run, t),
                         t.q.of(run),
                         t.k.of(run),
                         t.v.of(run),
                         run.view(t.attended),
                         run.view(t.log_sum_exp)};
  if (t.kept == kNoTensor) return op;
  op.shape.keys = kept_rows + t.shape.queries;
  op.k = t.kept_keys().of(run);
  op.v = t.kept_values().of(run);
  TERRACE_CHECK_LE(op.shape.keys, op.k.rows);
  op.k.rows = op.shape.keys;
  op.v.rows = op.shape.keys;
  return op;
}

// Copies the new rows of keys and values after those that are kept.
void keep(const UnitRun& run, const AttentionTensors& t) {
  const auto copy = [&](const Columns& from, const Columns& to) {
    StridedRows target = to.of(run);
    target.data +=
        static_cast<std::size_t>(run.memory.kept_rows * target.stride) * size_of(target.dtype);
    target.rows = t.shape.queries;
    run.kernels.scale_rows(run.context, {from.of(run), target});
  };
  copy(t.k, t.kept_keys());
  copy(t.v, t.kept_values());
}

// Returns the most workspace that the forward needs: for the new rows alone, or with all kept rows.
std::size_t attention_workspace(const UnitRun& run, const AttentionTensors& t, int workers) {
  const auto of = [&](std::int64_t kept_rows) {
    return run.kernels.attention_forward_workspace(attention_forward_op(run, t, kept_rows),
                                                   workers);
  };
  if (t.kept == kNoTensor) return of(0);
  return std::max(of(0), of(run.view(t.kept).shape[0] - t.shape.queries));
}

UnitCall attention_forward(const AttentionTensors& t) {
  UnitCall call;
  call.reads = {t.q.matrix, t.v.matrix};
  add_numbers(t, call.reads);
  call.writes = {t.q.matrix, t.attended, t.log_sum_exp};  // rotated in place
  if (t.kept != kNoTensor) {
    call.reads.push_back(t.kept);
    call.writes.push_back(t.kept);
  }
  call.run = [t](const UnitRun& run) {
    rotate(run, t, t.q, t.k, false);
    if (t.kept != kNoTensor) keep(run, t);
    run.kernels.attention_forward(run.context, attention_forward_op(run, t, run.memory.kept_rows));
  };
  call.workspace = [t](const UnitRun& run, int workers) {
    return attention_workspace(run, t, workers);
  };
  return call;
}

// The gradients of attention's result, of queries and keys, and of values.
struct AttentionGradients {
  TensorId dattended = kNoTensor;
  Columns dq, dk, dv;
};

UnitCall attention_backward(const AttentionTensors& t, const AttentionGradients& g) {
  UnitCall call;
  call.reads = {t.q.matrix, t.v.matrix, t.attended, t.log_sum_exp, g.dattended};
  add_numbers(t, call.reads);
  call.writes = {g.dq.matrix, g.dv.matrix};
  const auto op = [=](const UnitRun& run) {
    return AttentionBackward{t.shape,
                             rule_of(run, t),
                             t.q.of(run),
                             t.k.of(run),
                             t.v.of(run),
                             run.view(t.attended),
                             run.view(t.log_sum_exp),
                             run.view(g.dattended),
                             g.dq.of(run),
                             g.dk.of(run),
                             g.dv.of(run)};
  };
  call.run = [=](const UnitRun& run) {
    run.kernels.attention_backward(run.context, op(run));
    rotate(run, t, g.dq, g.dk, true);
  };
  call.workspace = [op](const UnitRun& run, int workers) {
    return run.kernels.attention_backward_workspace(op(run), workers);
  };
  call.prepare = [=](const UnitRun& run) {
    if (run.kernels.prepare_attention == nullptr) return;
    run.kernels.prepare_attention(run.context, attention_forward_op(run, t, 0), op(run));
  };
  return call;
}

// Returns the flops of the half of attention's products that a causal mask makes needless (a window
// may leave out more). The backward has twice as many.
double masked_flops(const LayerSite& site) {
  return 2.0 * static_cast<double>(site.batch.rows() * site.batch.positions) *
         static_cast<double>(site.config.heads * site.config.head_width);
}

// Returns the flops of the products of queries with keys, and of weights with values. A query sees
// half of the keys, or its window; that documents see less is known only when they are read.
double attention_flops(const LayerSite& site, const LayerOptions& layer) {
  const auto sequence = static_cast<double>(site.batch.positions);
  const auto window = static_cast<double>(layer.window);
  const bool is_windowed = layer.window > 0 && layer.window < site.batch.positions;
  const double seen = is_windowed ? window - window * window / (2 * sequence) : sequence / 2;
  return 4.0 * static_cast<double>(site.batch.rows()) * seen *
         static_cast<double>(site.config.heads * site.config.head_width);
}

// Adds the rotary table of all positions, or of each row if angles depend on a document's length.
void add_rope_table(const LayerSite& site, std::int64_t rope, AttentionTensors& t) {
  const bool is_of_rows = site.batch.row_angles > 0;
  const std::int64_t rows = is_of_rows ? site.batch.rows() : site.batch.table_positions();
  const std::int64_t lists = (is_of_rows ? site.batch.number_lists() : 0) + rope * t.rotary_width;
  t.table = site.graph.add({.name = "rope table",
                            .dtype = DType::kF32,
                            .shape = {rows, t.rotary_width, 1, 1},
                            .role = is_of_rows ? Role::kTokens : Role::kConstants,
                            .offset = static_cast<std::size_t>(lists * rows) * sizeof(float)});
  if (!is_of_rows) t.positions = site.numbers(RowNumbers::kPositions);
}

AttentionTensors attention_tensors(const LayerSite& site, TensorId qkv, TensorId normed,
                                   const LayerOptions& layer) {
  const ModelConfig& config = site.config;
  const BatchShape& batch = site.batch;
  const std::int64_t queries = config.heads * config.head_width;
  const std::int64_t keys = config.key_value_heads * config.head_width;
  AttentionTensors t;
  t.q = {normed, 0, queries};
  t.k = {normed, queries, keys};
  t.v = {qkv, queries + keys, keys};
  t.attended = site.all_rows("attended", queries);
  t.log_sum_exp = site.graph.add({.name = "log sum exp",
                                  .dtype = DType::kF32,
                                  .shape = {batch.sequences, config.heads, batch.positions, 1}});
  t.rotary_width = config.rotated_width();
  if (layer.rope >= 0) add_rope_table(site, layer.rope, t);
  t.first_keys = site.numbers(RowNumbers::kFirstKeys);
  if (batch.keeps_keys()) {
    TERRACE_CHECK_EQ(batch.sequences, 1);
    t.kept = site.graph.add({.name = "keys and values",
                             .dtype = site.type,
                             .shape = {batch.kept_positions, 2 * keys, 1, 1},
                             .role = Role::kKeyValues});
  }
  t.shape = {batch.sequences, batch.positions,        batch.positions,
             config.heads,    config.key_value_heads, config.head_width};
  t.rule.scale = config.score_scale != 0 ? config.score_scale
                                         : 1.0F / std::sqrt(static_cast<float>(config.head_width));
  t.rule.soft_cap = config.score_soft_cap;
  t.rule.window = layer.window;
  return t;
}

// A norm of the queries or the keys of q|k|v. Its result goes into the same columns of `normed`.
struct HeadNorm {
  NormTensors tensors;
  TensorId own_squares = kNoTensor;  // of this rank's part of the width
};

HeadNorm head_norm(const LayerSite& site, TensorId qkv, TensorId normed, bool of_keys) {
  const ModelConfig& config = site.config;
  const std::int64_t queries = config.heads * config.head_width;
  const std::int64_t width = (of_keys ? config.key_value_heads : config.heads) * config.head_width;
  const bool each_head = config.query_key_norms == QueryKeyNorms::kEachHead;
  const std::int64_t rows = site.batch.rows();
  HeadNorm norm;
  NormTensors& t = norm.tensors;
  t.x = {qkv, of_keys ? queries : 0, width};
  t.y = {normed, of_keys ? queries : 0, width};
  t.options = config.norm;
  t.options.has_mean = false;
  t.weights.weight = site.weight(of_keys ? ParameterKind::kKeyNorm : ParameterKind::kQueryNorm,
                                 each_head ? config.head_width : width);
  const std::int64_t groups = each_head ? width / config.head_width : 1;
  t.rstd = site.per_row(of_keys ? "key rstd" : "query rstd", rows, groups);
  if (each_head || site.split.ranks == 1) return norm;
  norm.own_squares = site.per_row("squares", rows);
  t.squares = site.per_row("all squares", site.split.ranks, rows);
  t.total_width = width * site.split.ranks;
  return norm;
}

UnitCall squares_call(const HeadNorm& norm) {
  UnitCall call;
  call.reads = {norm.tensors.x.matrix};
  call.writes = {norm.own_squares};
  call.run = [norm](const UnitRun& run) {
    run.kernels.row_squares(run.context, {norm.tensors.x.of(run), run.view(norm.own_squares)});
  };
  return call;
}

UnitCall along_call(const NormTensors& t, const Columns& dy, TensorId sums) {
  UnitCall call;
  call.reads = {dy.matrix, t.x.matrix, t.weights.weight.value, t.rstd};
  call.writes = {sums};
  call.run = [=](const UnitRun& run) {
    run.kernels.norm_along(run.context, {dy.of(run), t.x.of(run), run.view(t.weights.weight.value),
                                         run.view(t.rstd), run.view(sums), t.options.form});
  };
  return call;
}

}  // namespace

// --- tensors ------------------------------------------------------------------------------------

TensorId LayerSite::all_rows(std::string_view name, std::int64_t columns) const {
  return graph.add({.name = name, .dtype = type, .shape = {batch.rows(), columns, 1, 1}});
}

TensorId LayerSite::own_rows(std::string_view name, std::int64_t columns) const {
  return graph.add({.name = name, .dtype = type, .shape = {batch.own_rows(), columns, 1, 1}});
}

TensorId LayerSite::per_row(std::string_view name, std::int64_t rows, std::int64_t columns) const {
  return graph.add({.name = name, .dtype = DType::kF32, .shape = {rows, columns, 1, 1}});
}

TensorId LayerSite::boundary(Role role, std::string_view name, std::int64_t columns) const {
  return graph.add(
      {.name = name, .dtype = type, .shape = {batch.own_rows(), columns, 1, 1}, .role = role});
}

TensorId LayerSite::numbers(RowNumbers list) const {
  const std::int64_t place = batch.place_of(list);
  if (place < 0) return kNoTensor;
  constexpr auto kNames =
      std::to_array<std::string_view>({"tokens", "targets", "positions", "first keys", "samples"});
  const std::int64_t before = place * batch.rows();
  return graph.add({.name = kNames.at(static_cast<std::size_t>(list)),
                    .dtype = DType::kI32,
                    .shape = {batch.rows(), 1, 1, 1},
                    .role = Role::kTokens,
                    .offset = static_cast<std::size_t>(before) * sizeof(std::int32_t)});
}

TensorId LayerSite::parameter(const UnitLayout& unit, ParameterKind kind, std::int64_t rows,
                              Role role) const {
  const ParameterTensor* tensor = unit.find(kind);
  const bool is_gradient = role == Role::kGradient;
  if (tensor == nullptr || (is_gradient && !tensor->trainable)) return kNoTensor;
  const DType dtype = is_gradient ? DType::kF32 : type;
  return graph.add({.name = "parameter",
                    .dtype = dtype,
                    .shape = {rows, tensor->columns, 1, 1},
                    .role = role,
                    .number = unit.index == layout.index ? 0 : 1,  // 1: the one that it borrows
                    .offset = static_cast<std::size_t>(tensor->offset) * size_of(dtype)});
}

Weight LayerSite::weight(ParameterKind kind, std::int64_t rows) const {
  const ParameterTensor* const tensor = layout.find(kind);
  if (tensor != nullptr && tensor->quantized) return {.parts = {weight_part(*tensor, 0)}};
  return {parameter(layout, kind, rows, Role::kParameters),
          parameter(layout, kind, rows, Role::kGradient)};
}

// --- layers -------------------------------------------------------------------------------------

TensorId norm(const LayerSite& site, TensorId x, const NormWeights& weights) {
  UnitGraph& graph = site.graph;
  const std::int64_t rows = graph.at(x).rows();
  const std::int64_t width = graph.at(x).columns();
  NormTensors t;
  t.x = {x, 0, width};
  t.y = {graph.like(x, "normed"), 0, width};
  t.options = site.config.norm;
  t.rstd = site.per_row("rstd", rows);
  if (t.options.has_mean) t.mean = site.per_row("mean", rows);
  t.weights = weights;
  graph.call(norm_forward(t));
  graph.on_backward({x}, [&graph, t, x, width] {
    NormGradients g;
    g.dresidual = graph.gradient(x);
    g.dy = {graph.gradient(t.y.matrix), 0, width};
    g.dx = {graph.next_gradient(x), 0, width};
    graph.call(norm_backward(with_all_gradients(graph, t), g));
  });
  return t.y.matrix;
}

TensorId query_key_norms(const LayerSite& site, TensorId qkv) {
  if (site.config.query_key_norms == QueryKeyNorms::kNone) return qkv;
  UnitGraph& graph = site.graph;
  const std::int64_t values = site.config.key_value_heads * site.config.head_width;
  const TensorId normed =
      site.all_rows("normed queries and keys", site.config.qkv_columns() - values);
  const std::array<HeadNorm, 2> norms = {head_norm(site, qkv, normed, false),
                                         head_norm(site, qkv, normed, true)};
  const bool is_divided = norms[0].own_squares != kNoTensor;
  for (const HeadNorm& norm : norms) {
    if (is_divided) graph.call(squares_call(norm));
  }
  for (const HeadNorm& norm : norms) {
    if (!is_divided) continue;
    graph.exchange(UnitStep::Kind::kGather, norm.own_squares, norm.tensors.squares);
  }
  if (is_divided) graph.begin_step("mixing");
  for (const HeadNorm& norm : norms) graph.call(norm_forward(norm.tensors));
  graph.on_backward({qkv}, [site, qkv, normed, norms, is_divided] {
    UnitGraph& graph = site.graph;
    const TensorId dnormed = graph.gradient(normed);
    const TensorId dqkv = graph.gradient(qkv);  // which already has the values' gradient
    std::array<NormGradients, 2> gradients;
    std::array<TensorId, 2> sums = {kNoTensor, kNoTensor};
    for (std::size_t n = 0; n < norms.size(); ++n) {
      const NormTensors& t = norms[n].tensors;
      gradients[n].dy = {dnormed, t.y.first, t.y.width};
      gradients[n].dx = {dqkv, t.x.first, t.x.width};
      if (!is_divided) continue;
      sums[n] = site.per_row("along", site.batch.rows());
      gradients[n].along = site.per_row("all along", site.split.ranks, site.batch.rows());
      graph.call(along_call(t, gradients[n].dy, sums[n]));
    }
    for (std::size_t n = 0; n < norms.size() && is_divided; ++n) {
      graph.exchange(UnitStep::Kind::kGather, sums[n], gradients[n].along);
    }
    if (is_divided) graph.begin_step("query and key norms");
    for (std::size_t n = 0; n < norms.size(); ++n) {
      graph.call(norm_backward(with_all_gradients(graph, norms[n].tensors), gradients[n]));
    }
  });
  return normed;
}

TensorId attention(const LayerSite& site, TensorId qkv, TensorId normed,
                   const LayerOptions& layer) {
  UnitGraph& graph = site.graph;
  const AttentionTensors t = attention_tensors(site, qkv, normed, layer);
  const double flops = attention_flops(site, layer);
  UnitCall forward = attention_forward(t);
  const double masked = masked_flops(site);
  forward.flops = flops;
  forward.masked_flops = masked;
  graph.call(std::move(forward));
  graph.on_backward({qkv}, [&graph, t, qkv, normed, flops, masked] {
    AttentionGradients g;
    g.dattended = graph.gradient(t.attended);
    const TensorId dqkv = graph.next_gradient(qkv);
    TensorId dnormed = dqkv;
    if (normed != qkv) {
      dnormed = graph.like(normed, "gradient");
      graph.set_gradient(normed, dnormed);
    }
    g.dq = {dnormed, t.q.first, t.q.width};
    g.dk = {dnormed, t.k.first, t.k.width};
    g.dv = {dqkv, t.v.first, t.v.width};
    UnitCall backward = attention_backward(t, g);
    backward.flops = 2 * flops;
    backward.masked_flops = 2 * masked;
    graph.call(std::move(backward));
  });
  return t.attended;
}

TensorId activation(const LayerSite& site, TensorId x) {
  UnitGraph& graph = site.graph;
  const FeedForward kind = site.config.feed_forward;
  const bool gated = kind != FeedForward::kGelu;
  const GateActivation gate =
      kind == FeedForward::kSiluGate ? GateActivation::kSilu : GateActivation::kGeluTanh;
  const TensorId y = site.all_rows("activated", graph.at(x).columns() / (gated ? 2 : 1));
  UnitCall forward;
  forward.reads = {x};
  forward.writes = {y};
  forward.run = [=](const UnitRun& run) {
    if (gated) return run.kernels.glu_forward(run.context, {run.view(x), run.view(y), gate});
    run.kernels.gelu_forward(run.context, {run.view(x), run.view(y)});
  };
  graph.call(std::move(forward));
  graph.on_backward({x}, [&graph, x, y, gated, gate] {
    const TensorId dy = graph.gradient(y);
    const TensorId dx = graph.next_gradient(x);
    UnitCall backward;
    backward.reads = {x, dy};
    backward.writes = {dx};
    backward.run = [=](const UnitRun& run) {
      const TensorView views[] = {run.view(x), run.view(dy), run.view(dx)};
      if (gated) {
        return run.kernels.glu_backward(run.context, {views[0], views[1], views[2], gate});
      }
      run.kernels.gelu_backward(run.context, {views[0], views[1], views[2]});
    };
    graph.call(std::move(backward));
  });
  return y;
}

// Lets `b` be computed in the memory of `sum`, unless it is exchanged or shares memory already.
TensorId add(const LayerSite& site, TensorId a, TensorId b, TensorId sum, float factor) {
  UnitGraph& graph = site.graph;
  UnitTensor& addend = graph.at(b);
  if (!addend.is_exchanged && addend.same_as == kNoTensor) addend.same_as = sum;
  UnitCall call;
  call.reads = {a, b};
  call.writes = {sum};
  call.run = [=](const UnitRun& run) {
    run.kernels.add(run.context, {run.view(a), run.view(b), run.view(sum), factor});
  };
  graph.call(std::move(call));
  graph.on_backward({a, b}, [&graph, a, b, sum, factor] {
    const TensorId gradient = graph.gradient(sum);
    graph.add_to_gradient(a, gradient);
    if (factor == 1) return graph.add_to_gradient(b, gradient);
    const TensorId scaled = graph.like(b, "scaled gradient");
    UnitCall scale;
    scale.reads = {gradient};
    scale.writes = {scaled};
    scale.run = [=](const UnitRun& run) {
      run.kernels.scale(run.context, {run.view(gradient), run.view(scaled), factor});
    };
    graph.call(std::move(scale));
    graph.add_to_gradient(b, scaled);
  });
  return sum;
}

}  // namespace terrace
