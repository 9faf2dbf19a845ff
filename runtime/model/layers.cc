#include "runtime/model/layers.h"

#include <algorithm>
#include <cmath>

#include "base/check.h"

namespace terrace {
namespace {

// The views of a linear layer's weight and of its gradient, of whichever run.
struct LinearTensors {
  TensorId x, weight, bias, y;
};

UnitCall linear_forward(const LinearTensors& t) {
  UnitCall call;
  call.reads = {t.x, t.weight};
  if (t.bias != kNoTensor) call.reads.push_back(t.bias);
  call.writes = {t.y};
  const auto op = [t](const UnitRun& run) {
    return MatmulForward{run.view(t.x), run.view(t.weight), run.view(t.bias), run.view(t.y)};
  };
  call.run = [op](const UnitRun& run) { run.kernels.matmul_forward(run.context, op(run)); };
  call.workspace = [op](const UnitRun& run, int workers) {
    return run.kernels.matmul_forward_workspace(op(run), workers);
  };
  return call;
}

UnitCall linear_weight_gradient(const LinearTensors& t, TensorId dy, const LinearWeights& weights) {
  const TensorId dweight = weights.weight.gradient;
  const TensorId dbias = weights.bias.gradient;
  UnitCall call;
  call.reads = {dy, t.x};
  call.writes = {dweight};
  if (dbias != kNoTensor) call.writes.push_back(dbias);
  const auto op = [=](const UnitRun& run) {
    return MatmulBackwardWeight{run.view(dy), run.view(t.x), run.view(dweight), run.view(dbias),
                                run.mode(dweight)};
  };
  call.run = [op](const UnitRun& run) { run.kernels.matmul_backward_weight(run.context, op(run)); };
  call.workspace = [op](const UnitRun& run, int workers) {
    return run.kernels.matmul_backward_weight_workspace(op(run), workers);
  };
  return call;
}

UnitCall linear_input_gradient(TensorId dy, TensorId weight, TensorId dx) {
  UnitCall call;
  call.reads = {dy, weight};
  call.writes = {dx};
  const auto op = [=](const UnitRun& run) {
    return MatmulBackwardInput{run.view(dy), run.view(weight), run.view(dx)};
  };
  call.run = [op](const UnitRun& run) { run.kernels.matmul_backward_input(run.context, op(run)); };
  call.workspace = [op](const UnitRun& run, int workers) {
    return run.kernels.matmul_backward_input_workspace(op(run), workers);
  };
  return call;
}

// Some columns of a matrix.
struct Columns {
  TensorId matrix = kNoTensor;
  std::int64_t first = 0;
  std::int64_t width = 0;

  StridedRows of(const UnitRun& run) const {
    return matrix == kNoTensor ? StridedRows{} : columns_of(run.view(matrix), first, width);
  }
};

// What the calls of a norm touch. Layer norms have a mean and a bias, others not.
struct NormTensors {
  Columns x, y;
  TensorId rstd = kNoTensor;
  TensorId mean = kNoTensor;
  NormWeights weights;
  NormOptions options;
  // Of a width that tensor-parallel ranks divide: all parts' sums.
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

// Where the gradients of a norm come from and go to. `along`: of a divided width, all parts' sums.
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

UnitCall norm_backward(const NormTensors& t, const NormGradients& g) {
  UnitCall call = t.options.has_mean ? layer_norm_backward(t, g) : rms_backward(t, g);
  call.reads.insert(call.reads.end(), {g.dy.matrix, t.x.matrix, t.weights.weight.value, t.rstd});
  if (g.dresidual != kNoTensor) call.reads.push_back(g.dresidual);
  if (g.along != kNoTensor) call.reads.push_back(g.along);
  call.writes = {g.dx.matrix, t.weights.weight.gradient};
  call.workspace = [t](const UnitRun& run, int workers) {
    const std::int64_t width = run.view(t.weights.weight.value).elements();
    return run.kernels.norm_backward_workspace(run.view(t.rstd).elements(), width, workers);
  };
  return call;
}

// What attention touches, and its numbers.
struct AttentionTensors {
  TensorId qkv, attended, log_sum_exp, table;
  AttentionShape shape;
  float scale = 1.0F;
};

void rotate(const UnitRun& run, const AttentionTensors& t, TensorId qkv, bool inverse) {
  if (t.table == kNoTensor) return;
  Rope rope;
  rope.qkv = run.view(qkv);
  rope.table = run.view(t.table);
  rope.sequence = t.shape.sequence;
  rope.head_width = t.shape.head_width;
  rope.heads = t.shape.heads + t.shape.key_value_heads;  // queries, then keys
  rope.inverse = inverse;
  run.kernels.rope(run.context, rope);
}

AttentionForward attention_forward_op(const UnitRun& run, const AttentionTensors& t) {
  return {t.shape, run.view(t.qkv), run.view(t.attended), run.view(t.log_sum_exp), t.scale};
}

UnitCall attention_forward(const AttentionTensors& t) {
  UnitCall call;
  call.reads = {t.qkv};
  if (t.table != kNoTensor) call.reads.push_back(t.table);
  call.writes = {t.qkv, t.attended, t.log_sum_exp};
  call.run = [t](const UnitRun& run) {
    rotate(run, t, t.qkv, false);
    run.kernels.attention_forward(run.context, attention_forward_op(run, t));
  };
  call.workspace = [t](const UnitRun& run, int workers) {
    return run.kernels.attention_forward_workspace(attention_forward_op(run, t), workers);
  };
  return call;
}

UnitCall attention_backward(const AttentionTensors& t, TensorId dattended, TensorId dqkv) {
  UnitCall call;
  call.reads = {t.qkv, t.attended, t.log_sum_exp, dattended};
  if (t.table != kNoTensor) call.reads.push_back(t.table);
  call.writes = {dqkv};
  const auto op = [=](const UnitRun& run) {
    return AttentionBackward{t.shape,
                             run.view(t.qkv),
                             run.view(t.attended),
                             run.view(t.log_sum_exp),
                             run.view(dattended),
                             run.view(dqkv),
                             t.scale};
  };
  call.run = [=](const UnitRun& run) {
    run.kernels.attention_backward(run.context, op(run));
    rotate(run, t, dqkv, true);
  };
  call.workspace = [op](const UnitRun& run, int workers) {
    return run.kernels.attention_backward_workspace(op(run), workers);
  };
  call.prepare = [=](const UnitRun& run) {
    if (run.kernels.prepare_attention == nullptr) return;
    run.kernels.prepare_attention(run.context, attention_forward_op(run, t), op(run));
  };
  return call;
}

}  // namespace

// --- tensors
// ---------------------------------------------------------------------------------------

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

TensorId LayerSite::parameter(const UnitLayout& unit, ParameterKind kind, std::int64_t rows,
                              Role role) const {
  const ParameterTensor* tensor = unit.find(kind);
  if (tensor == nullptr) return kNoTensor;
  const bool is_gradient = role == Role::kGradient || role == Role::kTiedGradient;
  const DType dtype = is_gradient ? DType::kF32 : type;
  return graph.add({.name = "parameter",
                    .dtype = dtype,
                    .shape = {rows, tensor->columns, 1, 1},
                    .role = role,
                    .offset = static_cast<std::size_t>(tensor->offset) * size_of(dtype)});
}

Weight LayerSite::weight(ParameterKind kind, std::int64_t rows) const {
  return {parameter(layout, kind, rows, Role::kParameters),
          parameter(layout, kind, rows, Role::kGradient)};
}

// --- layers
// ----------------------------------------------------------------------------------------

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
    graph.call(norm_backward(t, g));
  });
  return t.y.matrix;
}

TensorId linear(const LayerSite& site, TensorId x, const LinearWeights& weights, TensorId y) {
  UnitGraph& graph = site.graph;
  const bool adds_bias = !weights.is_partial || site.split.rank == 0;
  const LinearTensors t = {x, weights.weight.value, adds_bias ? weights.bias.value : kNoTensor, y};
  const UnitTensor& weight = graph.at(t.weight);
  const double flops = 2.0 * static_cast<double>(weight.rows() * weight.columns()) *
                       static_cast<double>(graph.at(x).rows());
  UnitCall forward = linear_forward(t);
  forward.flops = flops;
  graph.call(std::move(forward));
  graph.on_backward({x}, [&graph, t, weights, flops] {
    const TensorId dy = graph.gradient(t.y);
    UnitCall weight_gradient = linear_weight_gradient(t, dy, weights);
    weight_gradient.flops = flops;
    graph.call(std::move(weight_gradient));
    const bool is_first = graph.gradient(t.x) == kNoTensor;
    const TensorId dx = is_first ? graph.next_gradient(t.x) : graph.like(t.x, "part of gradient");
    UnitCall input_gradient = linear_input_gradient(dy, t.weight, dx);
    input_gradient.flops = flops;
    graph.call(std::move(input_gradient));
    if (!is_first) graph.add_to_gradient(t.x, dx);
  });
  return y;
}

TensorId attention(const LayerSite& site, TensorId qkv, const LayerOptions& layer) {
  UnitGraph& graph = site.graph;
  const ModelConfig& config = site.config;
  const BatchShape& batch = site.batch;
  AttentionTensors t;
  t.qkv = qkv;
  t.attended = site.all_rows("attended", config.heads * config.head_width);
  t.log_sum_exp = graph.add({.name = "log sum exp",
                             .dtype = DType::kF32,
                             .shape = {batch.sequences, config.heads, batch.positions, 1}});
  t.table = kNoTensor;
  if (layer.rope >= 0) {
    const std::int64_t elements = batch.positions * config.head_width;
    t.table =
        graph.add({.name = "rope table",
                   .dtype = DType::kF32,
                   .shape = {batch.positions, config.head_width, 1, 1},
                   .role = Role::kConstants,
                   .offset = static_cast<std::size_t>(layer.rope * elements) * sizeof(float)});
  }
  t.shape = {batch.sequences, batch.positions, config.heads, config.key_value_heads,
             config.head_width};
  t.scale = 1.0F / std::sqrt(static_cast<float>(config.head_width));
  const double flops = 2.0 * static_cast<double>(batch.rows() * batch.positions) *
                       static_cast<double>(config.heads * config.head_width);
  UnitCall forward = attention_forward(t);
  forward.flops = flops;
  graph.call(std::move(forward));
  graph.on_backward({qkv}, [&graph, t, flops] {
    const TensorId dattended = graph.gradient(t.attended);
    UnitCall backward = attention_backward(t, dattended, graph.next_gradient(t.qkv));
    backward.flops = 2 * flops;
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
  const TensorId y = site.all_rows("activated", site.config.intermediate);
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

// What is added may be made where the sum goes.
TensorId add(const LayerSite& site, TensorId a, TensorId b, TensorId sum) {
  UnitGraph& graph = site.graph;
  const float factor = site.config.residual_scale;
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

// --- tensor-parallel branches
// ------------------------------------------------------------------------

Branch enter(const LayerSite& site, TensorId x, std::string_view into, std::string_view back) {
  UnitGraph& graph = site.graph;
  Branch branch{.own = x, .all = x, .inside = into};
  if (site.split.ranks == 1) return branch;
  graph.begin_step(into);
  if (site.split.shares_rows) {
    branch.all = site.all_rows("gathered", graph.at(x).columns());
    graph.exchange(UnitStep::Kind::kGather, x, branch.all);
  } else {
    branch.all = graph.like(x, "shared");
    graph.at(branch.all).same_as = x;
  }
  graph.on_backward({x}, [site, branch, back] {
    const TensorId partial = site.graph.gradient(branch.all);
    const bool cuts = site.split.shares_rows;
    const TensorId sum =
        cuts ? site.own_rows("reduced", site.graph.at(partial).columns()) : partial;
    site.graph.exchange(UnitStep::Kind::kSum, partial, sum);
    site.graph.begin_step(back);
    site.graph.add_to_gradient(branch.own, sum);
  });
  return branch;
}

TensorId leave(const LayerSite& site, const Branch& branch, TensorId partial,
               std::string_view behind) {
  if (site.split.ranks == 1) return partial;
  UnitGraph& graph = site.graph;
  const std::int64_t columns = graph.at(partial).columns();
  const TensorId sum =
      site.split.shares_rows ? site.own_rows("reduced", columns) : graph.like(partial, "sum");
  if (!site.split.shares_rows) graph.at(sum).same_as = partial;
  graph.exchange(UnitStep::Kind::kSum, partial, site.split.shares_rows ? sum : partial);
  graph.begin_step(behind);
  graph.on_backward({partial}, [site, branch, partial, sum, columns] {
    const TensorId own = site.graph.gradient(sum);
    TensorId all = own;
    if (site.split.shares_rows) {
      all = site.all_rows("gathered", columns);
      site.graph.exchange(UnitStep::Kind::kGather, own, all);
      site.graph.exchange(UnitStep::Kind::kGather, branch.own, branch.all);  // what was not saved
    }
    site.graph.begin_step(branch.inside);
    site.graph.set_gradient(partial, all);
  });
  return sum;
}

}  // namespace terrace
