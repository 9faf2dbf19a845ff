#include "runtime/model/experts_layer.h"

#include <utility>

#include "base/check.h"

namespace terrace {
namespace {

// The choice of experts: which the rows have, with which weights, and the slots sorted by expert.
struct Route {
  TensorId logits, index, weight;
  TensorId order, place, offsets;
};

// All experts' parameters, and their gradient: a row of gate, up and down for each expert.
struct ExpertWeights {
  TensorId value = kNoTensor;
  TensorId gradient = kNoTensor;  // kNoTensor: the experts are frozen
};

// The matrix of each expert in a product: gate and up as one, or down.
enum class ExpertMatrix : std::uint8_t { kGateUp, kDown };

// The tensors and numbers of a layer of experts.
struct ExpertTensors {
  Route route;
  ExpertWeights weights;
  TensorId x = kNoTensor;   // [R,C]
  TensorId up = kNoTensor;  // sorted: gate | up, [S,2I]
  TensorId activated = kNoTensor;
  std::int64_t width = 0, inner = 0;  // C and I
  std::int64_t per_row = 0;           // k
  std::int64_t slots = 0;             // S
  GateActivation activation = GateActivation::kSilu;

  // Returns the flops of a product of all slots with a matrix of their expert.
  double flops(ExpertMatrix matrix) const {
    const auto columns = static_cast<double>(matrix == ExpertMatrix::kGateUp ? 2 * inner : inner);
    return 2.0 * static_cast<double>(slots) * columns * static_cast<double>(width);
  }
  // Returns the matrix of each expert, or its gradient, as a row.
  StridedRows matrices(const UnitRun& run, TensorId all, ExpertMatrix matrix) const {
    const std::int64_t gate_up = 2 * inner * width;
    if (matrix == ExpertMatrix::kGateUp) return columns_of(run.view(all), 0, gate_up);
    return columns_of(run.view(all), gate_up, inner * width);
  }
  ExpertRows rows(const UnitRun& run) const {
    return {run.view(route.order), run.view(route.offsets), per_row};
  }
};

TensorId sorted_rows(const LayerSite& site, std::string_view name, const ExpertTensors& t,
                     std::int64_t columns) {
  return site.graph.add({.name = name, .dtype = site.type, .shape = {t.slots, columns, 1, 1}});
}

TensorId numbers(const LayerSite& site, std::string_view name, std::int64_t rows,
                 std::int64_t columns = 1) {
  return site.graph.add({.name = name, .dtype = DType::kI32, .shape = {rows, columns, 1, 1}});
}

// Adds all experts' parameters as one tensor. They lie side by side, gate, up and down of one
// expert after the other, and all of them train or none (check_trainable()).
ExpertWeights expert_weights(const LayerSite& site) {
  const ExpertOptions& options = site.config.experts;
  const ParameterTensor& first = *site.layout.find(ParameterKind::kExpertGate);
  const std::int64_t of_expert = 3 * first.elements();
  for (std::int32_t expert = 0; expert < options.count; ++expert) {
    const ParameterTensor& gate = *site.layout.find(ParameterKind::kExpertGate, expert);
    const ParameterTensor& down = *site.layout.find(ParameterKind::kExpertDown, expert);
    TERRACE_CHECK_EQ(gate.offset, first.offset + expert * of_expert);
    TERRACE_CHECK_EQ(down.offset, gate.offset + 2 * gate.elements());
    TERRACE_CHECK_EQ(gate.trainable, first.trainable);
  }
  const auto add = [&](Role role, DType type) {
    return site.graph.add({.name = "experts",
                           .dtype = type,
                           .shape = {options.count, of_expert, 1, 1},
                           .role = role,
                           .offset = static_cast<std::size_t>(first.offset) * size_of(type)});
  };
  return {add(Role::kParameters, site.type),
          first.trainable ? add(Role::kGradient, DType::kF32) : kNoTensor};
}

// Adds the calls that choose experts by their logits and sort the slots.
Route choose(const LayerSite& site, TensorId logits) {
  const std::int64_t rows = site.batch.rows();
  const std::int64_t per_row = site.config.experts.per_row;
  const ExpertRule rule = site.config.experts.rule;
  const Route route = {logits,
                       numbers(site, "chosen experts", rows, per_row),
                       site.per_row("expert weights", rows, per_row),
                       numbers(site, "slots by expert", rows * per_row),
                       numbers(site, "places of slots", rows, per_row),
                       numbers(site, "rows of experts", site.config.experts.count + 1)};
  UnitCall choice;
  choice.reads = {logits};
  choice.writes = {route.index, route.weight};
  choice.run = [=](const UnitRun& run) {
    run.kernels.choose_experts(
        run.context, {run.view(logits), run.view(route.index), run.view(route.weight), rule});
  };
  site.graph.call(std::move(choice));
  UnitCall sort;
  sort.reads = {route.index};
  sort.writes = {route.order, route.place, route.offsets};
  const auto op = [route](const UnitRun& run) {
    return SortSlots{run.view(route.index), run.view(route.order), run.view(route.place),
                     run.view(route.offsets)};
  };
  sort.run = [op](const UnitRun& run) { run.kernels.sort_slots(run.context, op(run)); };
  sort.workspace = [op](const UnitRun& run, int workers) {
    return run.kernels.sort_slots_workspace(op(run), workers);
  };
  site.graph.call(std::move(sort));
  return route;
}

// Makes the call that computes the gradient of the logits from the gradient of the weights.
UnitCall choice_gradient_call(const LayerSite& site, const Route& route, TensorId dweight,
                              TensorId dlogits) {
  const ExpertRule rule = site.config.experts.rule;
  UnitCall call;
  call.reads = {route.logits, route.index, dweight};
  call.writes = {dlogits};
  call.run = [=](const UnitRun& run) {
    run.kernels.choose_experts_backward(run.context, {run.view(route.logits), run.view(route.index),
                                                      run.view(dweight), run.view(dlogits), rule});
  };
  return call;
}

// --- products -----------------------------------------------------------------------------------

// An operand of a product: a sorted tensor, or one that is by row.
struct Operand {
  TensorId tensor = kNoTensor;
  bool is_by_row = false;

  ExpertSide side(const UnitRun& run) const { return {run.view(tensor), is_by_row}; }
};

UnitCall forward_call(const ExpertTensors& t, ExpertMatrix matrix, Operand x, TensorId y) {
  UnitCall call;
  call.reads = {x.tensor, t.weights.value, t.route.order, t.route.offsets};
  call.writes = {y};
  const auto op = [=](const UnitRun& run) {
    return ExpertForward{t.rows(run), x.side(run), t.matrices(run, t.weights.value, matrix),
                         run.view(y)};
  };
  call.run = [op](const UnitRun& run) { run.kernels.expert_forward(run.context, op(run)); };
  call.workspace = [op](const UnitRun& run, int workers) {
    return run.kernels.expert_forward_workspace(op(run), workers);
  };
  call.flops = t.flops(matrix);
  return call;
}

UnitCall input_gradient_call(const ExpertTensors& t, ExpertMatrix matrix, Operand dy, TensorId dx) {
  UnitCall call;
  call.reads = {dy.tensor, t.weights.value, t.route.order, t.route.offsets};
  call.writes = {dx};
  const auto op = [=](const UnitRun& run) {
    return ExpertBackwardInput{t.rows(run), dy.side(run), t.matrices(run, t.weights.value, matrix),
                               run.view(dx)};
  };
  call.run = [op](const UnitRun& run) { run.kernels.expert_backward_input(run.context, op(run)); };
  call.workspace = [op](const UnitRun& run, int workers) {
    return run.kernels.expert_backward_input_workspace(op(run), workers);
  };
  call.flops = t.flops(matrix);
  return call;
}

UnitCall weight_gradient_call(const ExpertTensors& t, ExpertMatrix matrix, Operand dy, Operand x) {
  const TensorId gradient = t.weights.gradient;
  UnitCall call;
  call.reads = {dy.tensor, x.tensor, t.route.order, t.route.offsets};
  call.writes = {gradient};
  const auto op = [=](const UnitRun& run) {
    return ExpertBackwardWeight{t.rows(run), dy.side(run), x.side(run),
                                t.matrices(run, gradient, matrix), run.mode(gradient)};
  };
  call.run = [op](const UnitRun& run) { run.kernels.expert_backward_weight(run.context, op(run)); };
  call.workspace = [op](const UnitRun& run, int workers) {
    return run.kernels.expert_backward_weight_workspace(op(run), workers);
  };
  call.flops = t.flops(matrix);
  return call;
}

// --- between the products -----------------------------------------------------------------------

// Adds up the rows of each row's experts, with their weights unless `weight` is kNoTensor.
UnitCall sum_call(const ExpertTensors& t, TensorId rows, TensorId weight, TensorId y) {
  UnitCall call;
  call.reads = {rows, t.route.place};
  if (weight != kNoTensor) call.reads.push_back(weight);
  call.writes = {y};
  call.run = [=](const UnitRun& run) {
    run.kernels.sum_expert_rows(
        run.context, {run.view(rows), run.view(t.route.place), run.view(weight), run.view(y)});
  };
  return call;
}

UnitCall activation_call(const ExpertTensors& t) {
  UnitCall call;
  call.reads = {t.up};
  call.writes = {t.activated};
  call.run = [t](const UnitRun& run) {
    run.kernels.glu_forward(run.context, {run.view(t.up), run.view(t.activated), t.activation});
  };
  return call;
}

UnitCall activation_gradient_call(const ExpertTensors& t, TensorId dactivated, TensorId dup) {
  UnitCall call;
  call.reads = {t.up, dactivated};
  call.writes = {dup};
  call.run = [=](const UnitRun& run) {
    run.kernels.glu_backward(run.context,
                             {run.view(t.up), run.view(dactivated), run.view(dup), t.activation});
  };
  return call;
}

// The gradients behind the product with the down matrices.
struct SlotGradients {
  TensorId dh = kNoTensor;        // of the weighted activation, from where dactivated is made
  TensorId dweight = kNoTensor;   // of the slots' weights
  TensorId weighted = kNoTensor;  // the activation times the weight; kNoTensor: not wanted
};

UnitCall weigh_call(const ExpertTensors& t, const SlotGradients& g) {
  UnitCall call;
  call.reads = {t.route.order, t.route.weight, g.dh, t.activated};
  call.writes = {g.dweight, g.dh};
  if (g.weighted != kNoTensor) call.writes.push_back(g.weighted);
  call.run = [=](const UnitRun& run) {
    WeighExpertRows op;
    op.order = run.view(t.route.order);
    op.weight = run.view(t.route.weight);
    op.dh = run.view(g.dh);
    op.act = run.view(t.activated);
    op.dweight = run.view(g.dweight);
    op.dact = op.dh;
    op.weighted = run.view(g.weighted);
    run.kernels.weigh_expert_rows(run.context, op);
  };
  return call;
}

// Writes the backward of the experts, from the gradient dy [R,C] of their sum. It chooses and sorts
// again from the logits, and nothing else of the choice is saved.
void experts_backward(const LayerSite& site, const ExpertTensors& forward, TensorId dy) {
  UnitGraph& graph = site.graph;
  ExpertTensors t = forward;
  t.route = choose(site, forward.route.logits);
  const bool trains = t.weights.gradient != kNoTensor;
  SlotGradients g;
  g.dh = sorted_rows(site, "gradient of activated", t, t.inner);
  g.dweight = graph.like(t.route.weight, "gradient of expert weights");
  if (trains) g.weighted = sorted_rows(site, "weighted", t, t.inner);
  graph.call(input_gradient_call(t, ExpertMatrix::kDown, {dy, true}, g.dh));
  graph.call(weigh_call(t, g));
  graph.call(choice_gradient_call(site, t.route, g.dweight, graph.next_gradient(t.route.logits)));
  if (trains) {
    graph.call(weight_gradient_call(t, ExpertMatrix::kDown, {dy, true}, {g.weighted, false}));
  }
  const TensorId dup = sorted_rows(site, "gradient of up", t, 2 * t.inner);
  graph.call(activation_gradient_call(t, g.dh, dup));
  if (trains) graph.call(weight_gradient_call(t, ExpertMatrix::kGateUp, {dup, false}, {t.x, true}));
  const TensorId rows = sorted_rows(site, "gradients of slots", t, t.width);
  graph.call(input_gradient_call(t, ExpertMatrix::kGateUp, {dup, false}, rows));
  const TensorId dx = graph.like(t.x, "gradient of experts");
  graph.call(sum_call(t, rows, kNoTensor, dx));
  graph.add_to_gradient(t.x, dx);
}

}  // namespace

TensorId experts(const LayerSite& site, TensorId x) {
  UnitGraph& graph = site.graph;
  const ModelConfig& config = site.config;
  TERRACE_CHECK_EQ(site.split.ranks, 1);  // check_tensor_split() refuses more
  const std::int64_t count = config.experts.count;
  ExpertTensors t;
  t.route = choose(site, linear(site, x, {site.weight(ParameterKind::kRouter, count), {}},
                                site.all_rows("router logits", count)));
  t.weights = expert_weights(site);
  t.x = x;
  t.width = config.width;
  t.inner = config.experts.intermediate;
  t.per_row = config.experts.per_row;
  t.slots = site.batch.rows() * t.per_row;
  t.activation = config.feed_forward == FeedForward::kSiluGate ? GateActivation::kSilu
                                                               : GateActivation::kGeluTanh;
  t.up = sorted_rows(site, "up", t, 2 * t.inner);
  t.activated = sorted_rows(site, "activated", t, t.inner);
  const TensorId rows = sorted_rows(site, "results of slots", t, t.width);
  const TensorId y = site.all_rows("experts", t.width);
  graph.call(forward_call(t, ExpertMatrix::kGateUp, {x, true}, t.up));
  graph.call(activation_call(t));
  graph.call(forward_call(t, ExpertMatrix::kDown, {t.activated, false}, rows));
  graph.call(sum_call(t, rows, t.route.weight, y));
  graph.on_backward({x, t.route.logits},
                    [site, t, y] { experts_backward(site, t, site.graph.gradient(y)); });
  return y;
}

}  // namespace terrace
