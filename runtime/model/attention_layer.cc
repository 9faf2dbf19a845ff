#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

#include "base/check.h"
#include "runtime/model/columns.h"
#include "runtime/model/layers.h"

// The attention of a block, with rotary embedding and the keys and values that sampling keeps.
namespace terrace {
namespace {

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
  Weight sinks;  // kNoTensor where heads have none
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
  rule.sinks = run.view(t.sinks.value);
  return rule;
}

// Adds the tensors that attention reads besides activations.
void add_numbers(const AttentionTensors& t, std::vector<TensorId>& reads) {
  for (const TensorId tensor : {t.table, t.positions, t.first_keys, t.sinks.value}) {
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

// Makes the call that computes the gradient of the sinks. log_sum_exp has them, so nothing else of
// the backward knows of them.
UnitCall sinks_backward(const AttentionTensors& t, TensorId dattended) {
  UnitCall call;
  call.reads = {t.sinks.value, t.attended, t.log_sum_exp, dattended};
  call.writes = {t.sinks.gradient};
  call.run = [=](const UnitRun& run) {
    run.kernels.attention_sinks_backward(
        run.context,
        {t.shape, run.view(t.sinks.value), run.view(t.attended), run.view(t.log_sum_exp),
         run.view(dattended), run.view(t.sinks.gradient), run.mode(t.sinks.gradient)});
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
  t.sinks = site.weight(ParameterKind::kSinks, config.heads);
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

}  // namespace

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
    if (t.sinks.gradient != kNoTensor) graph.call(sinks_backward(t, g.dattended));
    UnitCall backward = attention_backward(t, g);
    backward.flops = 2 * flops;
    backward.masked_flops = 2 * masked;
    graph.call(std::move(backward));
  });
  return t.attended;
}

}  // namespace terrace
