#include <algorithm>
#include <utility>

#include "runtime/model/dropout.h"
#include "runtime/model/layers.h"

// The linear layer: one product forward, and two on the way back.
namespace terrace {
namespace {

// The tensors of a linear layer: input, weight, bias and result.
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

// A product that makes the gradient of a weight, of its bias or of both, for some of its rows.
struct WeightGradient {
  TensorId dy, x;
  TensorId weight;  // has the number of columns
  TensorId dweight = kNoTensor;
  TensorId dbias = kNoTensor;
  std::int64_t first = 0;
  std::int64_t rows = 0;
};

UnitCall linear_weight_gradient(const WeightGradient& g) {
  UnitCall call;
  call.reads = {g.dy};
  if (g.dweight != kNoTensor) {
    call.reads.push_back(g.x);
    call.writes.push_back(g.dweight);
  }
  if (g.dbias != kNoTensor) call.writes.push_back(g.dbias);
  const auto op = [g](const UnitRun& run) {
    const TensorView whole = run.view(g.dy);
    const std::int64_t columns = whole.shape[1];
    const auto before = static_cast<std::size_t>(g.first) * size_of(whole.dtype);
    const TensorView dy =
        view(whole.data + before, whole.dtype, whole.elements() / columns, g.rows);
    TensorView x = run.view(g.x);
    TensorView dweight = run.view(g.dweight);
    if (g.dweight == kNoTensor) {  // then nothing keeps x either
      x.data = nullptr;
      dweight = view(nullptr, DType::kF32, g.rows, run.view(g.weight).shape[1]);
    }
    return MatmulBackwardWeight{dy,
                                x,
                                dweight,
                                run.view(g.dbias),
                                run.mode(g.dweight != kNoTensor ? g.dweight : g.dbias),
                                columns};
  };
  call.run = [op](const UnitRun& run) { run.kernels.matmul_backward_weight(run.context, op(run)); };
  call.workspace = [op](const UnitRun& run, int workers) {
    return run.kernels.matmul_backward_weight_workspace(op(run), workers);
  };
  return call;
}

// Copies a part of a weight to the place where the whole has its rows; dequantises it where needed.
void join_part(const UnitRun& run, const WeightPart& part, const TensorView& whole) {
  const auto before = static_cast<std::size_t>(part.first * part.columns) * size_of(whole.dtype);
  const TensorView rows =
      view(whole.empty() ? nullptr : whole.data + before, whole.dtype, part.rows, part.columns);
  const TensorView value = run.view(part.value);
  if (part.quantized) return run.kernels.dequantize(run.context, {value, *part.quantized, rows});
  run.kernels.scale(run.context, {value, rows, 1.0F});
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

// Adds the calls that compute the gradients of a linear layer's weight and bias, as far as they
// train. `flops` is for the whole weight's gradient.
void weight_gradients(UnitGraph& graph, const LinearTensors& t, const LinearWeights& weights,
                      double flops) {
  const TensorId dy = graph.gradient(t.y);
  const std::int64_t rows = graph.at(t.weight).rows();
  const auto emit = [&](const WeightGradient& gradient) {
    if (gradient.dweight == kNoTensor && gradient.dbias == kNoTensor) return;
    UnitCall call = linear_weight_gradient(gradient);
    const double of_a_row = flops / static_cast<double>(rows);
    if (gradient.dweight != kNoTensor) call.flops = of_a_row * static_cast<double>(gradient.rows);
    graph.call(std::move(call));
  };
  const bool is_joined = !weights.weight.parts.empty() || !weights.bias.parts.empty();
  if (!is_joined) {
    return emit({dy, t.x, t.weight, weights.weight.gradient, weights.bias.gradient, 0, rows});
  }
  emit({dy, t.x, t.weight, weights.weight.gradient, kNoTensor, 0, rows});
  emit({dy, t.x, t.weight, kNoTensor, weights.bias.gradient, 0, rows});
  for (const WeightPart& part : weights.weight.parts) {
    emit({dy, t.x, t.weight, part.gradient, kNoTensor, part.first, part.rows});
  }
  for (const WeightPart& part : weights.bias.parts) {
    emit({dy, t.x, t.weight, kNoTensor, part.gradient, part.first, part.rows});
  }
}

// Returns the tensor that the weight is multiplied with: x, or a copy of x with elements dropped.
// The copy is not saved: forward and backward each make it.
TensorId multiplied_input(const LayerSite& site, TensorId x, const LinearWeights& weights) {
  if (!weights.dropout) return x;
  return drop(site, *weights.dropout, x, site.graph.like(x, "dropped input"));
}

// Adds the call that computes the layer's part of the gradient of its input `x`.
void input_gradient(const LayerSite& site, const LinearTensors& t, const LinearWeights& weights,
                    double flops) {
  UnitGraph& graph = site.graph;
  const bool is_first = graph.gradient(t.x) == kNoTensor;
  const TensorId dx = is_first ? graph.next_gradient(t.x) : graph.like(t.x, "part of gradient");
  UnitCall product =
      linear_input_gradient(graph.gradient(t.y), side_by_side(site, weights.weight), dx);
  product.flops = flops;
  graph.call(std::move(product));
  if (weights.dropout) drop(site, *weights.dropout, dx, dx);
  if (!is_first) graph.add_to_gradient(t.x, dx);
}

}  // namespace

// Where only some parts of a weight train, the trained and the frozen parts lie in two places of
// the unit's sequence.
Weight LayerSite::joined_weight(std::initializer_list<ParameterKind> kinds) const {
  std::vector<const ParameterTensor*> tensors;
  std::int64_t rows = 0;
  for (const ParameterKind kind : kinds) {
    const ParameterTensor* const tensor = layout.find(kind);
    if (tensor == nullptr) continue;
    tensors.push_back(tensor);
    rows += tensor->rows;
  }
  if (tensors.empty()) return {};
  const bool is_alike = std::ranges::all_of(tensors, [&](const ParameterTensor* tensor) {
    return tensor->trainable == tensors.front()->trainable && !tensor->quantized;
  });
  if (is_alike) return weight(tensors.front()->kind, rows);
  Weight weight;
  std::int64_t first = 0;
  for (const ParameterTensor* const tensor : tensors) {
    weight.parts.push_back(weight_part(*tensor, first));
    first += tensor->rows;
  }
  return weight;
}

WeightPart LayerSite::weight_part(const ParameterTensor& tensor, std::int64_t first) const {
  WeightPart part = {.first = first, .rows = tensor.rows, .columns = tensor.columns};
  part.quantized = tensor.quantized;
  if (!part.quantized) {
    part.value = parameter(layout, tensor.kind, tensor.rows, Role::kParameters);
    part.gradient = parameter(layout, tensor.kind, tensor.rows, Role::kGradient);
    return part;
  }
  part.value = graph.add({.name = "quantised",
                          .dtype = DType::kU8,
                          .shape = {part.quantized->size_bytes(), 1, 1, 1},
                          .role = Role::kParameters,
                          .offset = static_cast<std::size_t>(tensor.offset) * size_of(type)});
  return part;
}

TensorId side_by_side(const LayerSite& site, const Weight& weight) {
  if (weight.parts.empty()) return weight.value;
  const std::vector<WeightPart> parts = weight.parts;
  const WeightPart& last = parts.back();
  const TensorId whole = site.graph.add({.name = "joined weight",
                                         .dtype = site.type,
                                         .shape = {last.first + last.rows, last.columns, 1, 1}});
  UnitCall join;
  for (const WeightPart& part : parts) join.reads.push_back(part.value);
  join.writes = {whole};
  join.run = [parts, whole](const UnitRun& run) {
    for (const WeightPart& part : parts) join_part(run, part, run.view(whole));
  };
  site.graph.call(std::move(join));
  return whole;
}

TensorId linear(const LayerSite& site, TensorId x, const LinearWeights& weights, TensorId y) {
  UnitGraph& graph = site.graph;
  const bool adds_bias = !weights.is_partial || site.split.rank == 0;
  const TensorId bias = adds_bias ? side_by_side(site, weights.bias) : kNoTensor;
  const bool has_magnitudes = std::ranges::any_of(
      weights.adapters, [](const LayerAdapter& a) { return a.magnitudes.value != kNoTensor; });
  const TensorId sum = has_magnitudes ? graph.like(y, "before magnitudes") : y;
  const LinearTensors t = {x, side_by_side(site, weights.weight), bias, sum};
  const UnitTensor& weight = graph.at(t.weight);
  const double flops = 2.0 * static_cast<double>(weight.rows() * weight.columns()) *
                       static_cast<double>(graph.at(x).rows());
  LinearTensors multiplied = t;
  multiplied.x = multiplied_input(site, x, weights);
  UnitCall forward = linear_forward(multiplied);
  forward.flops = flops;
  graph.call(std::move(forward));
  graph.on_backward({x}, [site, t, weights, flops] {
    LinearTensors multiplied = t;
    multiplied.x = multiplied_input(site, t.x, weights);
    weight_gradients(site.graph, multiplied, weights, flops);
    input_gradient(site, t, weights, flops);
  });
  for (const LayerAdapter& adapter : weights.adapters) add_adapter(site, x, adapter, sum);
  if (has_magnitudes) apply_magnitudes(site, {x, t.weight, bias, sum, y}, weights.adapters);
  return y;
}

}  // namespace terrace
