#include "runtime/model/layers.h"

#include <algorithm>
#include <array>

#include "base/check.h"
#include "runtime/model/columns.h"

namespace terrace {
namespace {

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

TensorId activation(const LayerSite& site, TensorId x) {
  UnitGraph& graph = site.graph;
  const FeedForward kind = site.config.feed_forward;
  const bool gated = kind != FeedForward::kGelu;
  const GateActivation gate = gate_activation(kind);
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
