#include "runtime/model/experts_layer.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "base/check.h"
#include "runtime/model/expert_biases.h"
#include "runtime/model/expert_groups.h"
#include "runtime/model/router_losses.h"

namespace terrace {
namespace {

// The names of the other tensors of numbers.
constexpr std::string_view kChosen = "chosen experts";
constexpr std::string_view kOrder = "slots by expert";
constexpr std::string_view kPlaces = "places of slots";

// The choice of experts: which the rows have, with which weights, and the slots sorted by expert.
struct Route {
  TensorId logits, bias, index, weight;
  TensorId order, place, offsets;
};

// The matrix of a product with experts: gate and up as one, or down.
enum class ExpertMatrix : std::uint8_t { kGateUp, kDown };

// The parameters of neighbouring experts, and their gradient: a row of gate, up and down for each.
struct ExpertWeights {
  std::int64_t first = 0;  // the first expert
  std::int64_t count = 0;
  TensorId value = kNoTensor;
  TensorId gradient = kNoTensor;  // kNoTensor: the experts are frozen
  std::vector<TensorId> padding;  // of the gradient: no parameters
  // The parts of all matrices of a kind, one below the other, if they are quantised. Then there is
  // no value.
  Weight gate_up = {};
  Weight down = {};
};

// The tensors and numbers of a layer of experts.
struct ExpertTensors {
  Route route;
  TensorId x = kNoTensor;             // [R,C]
  std::int64_t width = 0, inner = 0;  // C and I
  std::int64_t experts = 0;           // E
  std::int64_t per_row = 0;           // k
  std::int64_t slots = 0;             // S
  GateActivation activation = GateActivation::kSilu;
  ExpertBiases biases;
  std::vector<ExpertWeights> groups;  // ascending
  // Whether every group is a group of parameters of its own, which a part of the pass works with.
  // Else all experts are in the unit's own group, and the pass is one part.
  bool is_divided = false;
};

// The tensors of one group: its weights, and sorted rows that it alone touches.
struct GroupTensors {
  const ExpertTensors& layer;
  const ExpertWeights& weights;
  TensorId up = kNoTensor;  // gate | up, [S,2I]
  TensorId activated = kNoTensor;

  // Returns how much of the sorted rows is the group's, in the mean.
  double share() const {
    return static_cast<double>(weights.count) / static_cast<double>(layer.experts);
  }
  // Returns the flops of a product of the group's slots with a matrix of their expert.
  double flops(ExpertMatrix matrix) const {
    const auto columns =
        static_cast<double>(matrix == ExpertMatrix::kGateUp ? 2 * layer.inner : layer.inner);
    return 2.0 * share() * static_cast<double>(layer.slots) * columns *
           static_cast<double>(layer.width);
  }
  ExpertSlots expert_slots() const {
    return {layer.route.order, layer.route.offsets, layer.per_row,
            weights.first,     weights.count,       share()};
  }
};

// The numbers and tensors that the calls of a group need when they run. Each call has a copy.
struct GroupRows {
  Route route;
  ExpertSlots slots;
  std::int64_t width = 0, inner = 0;  // C and I

  explicit GroupRows(const GroupTensors& t)
      : route(t.layer.route), slots(t.expert_slots()), width(t.layer.width), inner(t.layer.inner) {}

  // Returns the matrix of each expert, or its gradient, as a row. The rows of `all` are whole
  // experts, or these matrices alone.
  StridedRows matrices(const UnitRun& run, TensorId all, ExpertMatrix matrix) const {
    const std::int64_t gate_up = 2 * inner * width;
    const std::int64_t elements = matrix == ExpertMatrix::kGateUp ? gate_up : inner * width;
    const TensorView view = run.view(all);
    const bool is_behind = matrix == ExpertMatrix::kDown && view.shape[1] != elements;
    return columns_of(view, is_behind ? gate_up : 0, elements);
  }
  TensorView offsets(const UnitRun& run) const { return slots.offsets_of(run); }
  ExpertRows rows(const UnitRun& run) const { return slots.rows(run); }
};

TensorId sorted_rows(const LayerSite& site, std::string_view name, const ExpertTensors& t,
                     std::int64_t columns) {
  return site.graph.add({.name = name, .dtype = site.type, .shape = {t.slots, columns, 1, 1}});
}

TensorId numbers(const LayerSite& site, std::string_view name, std::int64_t rows,
                 std::int64_t columns = 1) {
  return site.graph.add({.name = name, .dtype = DType::kI32, .shape = {rows, columns, 1, 1}});
}

// Checks that the experts' gate, up and down lie side by side, and returns the elements of an
// expert that are parameters.
std::int64_t checked_expert(const LayerSite& site) {
  const UnitLayout& layout = site.layout;
  const std::int64_t matrix = layout.find(ParameterKind::kExpertGate)->elements();
  for (const ParameterTensor& tensor : layout.tensors) {
    if (!is_of_expert(tensor.kind)) continue;
    const auto place = static_cast<std::int64_t>(tensor.kind) -
                       static_cast<std::int64_t>(ParameterKind::kExpertGate);
    if (tensor.quantized) continue;
    TERRACE_CHECK_EQ(tensor.offset, layout.shared_elements() +
                                        tensor.expert * layout.experts.elements + place * matrix);
    TERRACE_CHECK_EQ(tensor.trainable, layout.experts.train);
  }
  return 3 * matrix;
}

// Adds the quantised matrices of these kinds of a group, as parts of a matrix in which the
// experts lie one below the other. `number` and `begin` are as below.
Weight quantized_matrices(const LayerSite& site, std::initializer_list<ParameterKind> kinds,
                          const ExpertGroup& group, std::int32_t number, std::int64_t begin) {
  Weight all;
  std::int64_t rows = 0;
  for (std::int64_t expert = group.first; expert < group.first + group.count; ++expert) {
    for (const ParameterKind kind : kinds) {
      const ParameterTensor* const tensor =
          site.layout.find(kind, static_cast<std::int32_t>(expert));
      WeightPart part = site.weight_part(*tensor, rows);
      UnitTensor& bytes = site.graph.at(part.value);
      bytes.number = number;
      bytes.offset -= static_cast<std::size_t>(begin) * size_of(site.type);
      rows += part.rows;
      all.parts.push_back(part);
    }
  }
  return all;
}

// Adds the parameters of a group as one tensor: a row for each expert, with its padding. `number`
// is the group's among the unit's groups, which begins at element `begin` of the unit's sequence.
ExpertWeights expert_weights(const LayerSite& site, const ExpertGroup& group, std::int32_t number,
                             std::int64_t begin) {
  const std::int64_t of_expert = site.layout.experts.elements;
  const auto add = [&](Role role, DType type, ElementSpan elements, std::int64_t rows) {
    return site.graph.add(
        {.name = "experts",
         .dtype = type,
         .shape = {rows, (elements.end - elements.begin) / rows, 1, 1},
         .role = role,
         .number = number,
         .offset = static_cast<std::size_t>(elements.begin - begin) * size_of(type)});
  };
  ExpertWeights weights;
  weights.first = group.first;
  weights.count = group.count;
  if (site.layout.experts.are_quantized) {
    using Kind = ParameterKind;
    weights.gate_up =
        quantized_matrices(site, {Kind::kExpertGate, Kind::kExpertUp}, group, number, begin);
    weights.down = quantized_matrices(site, {Kind::kExpertDown}, group, number, begin);
    return weights;
  }
  weights.value = add(Role::kParameters, site.type, group.elements, group.count);
  if (!site.layout.experts.train) return weights;
  weights.gradient = add(Role::kGradient, DType::kF32, group.elements, group.count);
  const std::int64_t parameters = checked_expert(site);
  if (parameters == of_expert) return weights;
  for (std::int64_t at = group.elements.begin; at < group.elements.end; at += of_expert) {
    weights.padding.push_back(
        add(Role::kGradient, DType::kF32, {at + parameters, at + of_expert}, 1));
  }
  return weights;
}

// Adds the parameters of all experts, in groups as the site says.
void add_weights(const LayerSite& site, ExpertTensors& t) {
  t.is_divided = site.experts_per_group > 0;
  const std::int64_t per_group = t.is_divided ? site.experts_per_group : t.experts;
  checked_expert(site);
  std::int32_t number = 0;
  for (const ExpertGroup& group : expert_groups(site.layout, per_group)) {
    if (t.is_divided) ++number;
    const std::int64_t begin = t.is_divided ? group.elements.begin : 0;
    t.groups.push_back(expert_weights(site, group, number, begin));
  }
  if (t.is_divided) site.graph.set_own_groups(number + 1);
}

// Adds the bias of the choice; kNoTensor where there is none.
TensorId choice_bias(const LayerSite& site) {
  const ParameterTensor* const bias = site.layout.find(ParameterKind::kChoiceBias);
  if (bias == nullptr) return kNoTensor;
  return site.parameter(site.layout, ParameterKind::kChoiceBias, bias->rows, Role::kParameters);
}

// Adds the calls that choose experts by their logits and sort the slots.
Route choose(const LayerSite& site, TensorId logits, TensorId bias) {
  const std::int64_t rows = site.batch.rows();
  const std::int64_t per_row = site.config.experts.per_row;
  const ExpertRule rule = site.config.experts.rule;
  const Route route = {logits,
                       bias,
                       numbers(site, kChosen, rows, per_row),
                       site.per_row("expert weights", rows, per_row),
                       numbers(site, kOrder, rows * per_row),
                       numbers(site, kPlaces, rows, per_row),
                       numbers(site, kRowsOfExperts, site.config.experts.count + 1)};
  UnitCall choice;
  choice.reads = {logits};
  if (bias != kNoTensor) choice.reads.push_back(bias);
  choice.writes = {route.index, route.weight};
  choice.run = [=](const UnitRun& run) {
    run.kernels.choose_experts(run.context, {run.view(logits), run.view(route.index),
                                             run.view(route.weight), rule, run.view(route.bias)});
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

// Makes the call that computes the gradient of the logits from the gradient of the weights and
// from the losses of the router.
UnitCall choice_gradient_call(const LayerSite& site, const Route& route, TensorId dweight,
                              TensorId dlogits) {
  const ExpertRule rule = site.config.experts.rule;
  const RouterLossGradient losses = router_loss_gradient(site);
  UnitCall call;
  call.reads = {route.logits, route.index, dweight};
  for (const TensorId tensor : {losses.slopes, losses.targets}) {
    if (tensor != kNoTensor) call.reads.push_back(tensor);
  }
  call.writes = {dlogits};
  call.run = [=](const UnitRun& run) {
    run.kernels.choose_experts_backward(
        run.context, {run.view(route.logits), run.view(route.index), run.view(dweight),
                      run.view(dlogits), rule, run.view(losses.slopes), run.view(losses.targets)});
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

// Returns the tensor that has a matrix of each of a group's experts. Quantised ones are dequantised
// in scratch, for each product again, so that one matrix of each expert is there at a time.
TensorId multiplied_weights(const LayerSite& site, const GroupTensors& t, ExpertMatrix matrix) {
  if (!site.layout.experts.are_quantized) return t.weights.value;
  const bool is_down = matrix == ExpertMatrix::kDown;
  const TensorId rows = side_by_side(site, is_down ? t.weights.down : t.weights.gate_up);
  UnitTensor experts = site.graph.at(rows);
  const std::int64_t elements = experts.rows() * experts.columns();
  experts.name = "dequantised experts";
  experts.shape = {t.weights.count, elements / t.weights.count, 1, 1};
  experts.same_as = rows;
  return site.graph.add(experts);
}

UnitCall forward_call(const LayerSite& site, const GroupTensors& t, ExpertMatrix matrix, Operand x,
                      TensorId y) {
  const TensorId weights = multiplied_weights(site, t, matrix);
  UnitCall call;
  call.reads = {x.tensor, weights, t.layer.route.order, t.layer.route.offsets};
  call.writes = {y};
  const auto op = [=, group = GroupRows(t)](const UnitRun& run) {
    return ExpertForward{group.rows(run), x.side(run), group.matrices(run, weights, matrix),
                         run.view(y)};
  };
  call.run = [op](const UnitRun& run) { run.kernels.expert_forward(run.context, op(run)); };
  call.workspace = [op](const UnitRun& run, int workers) {
    return run.kernels.expert_forward_workspace(op(run), workers);
  };
  call.flops = t.flops(matrix);
  call.share = t.share();
  return call;
}

UnitCall input_gradient_call(const LayerSite& site, const GroupTensors& t, ExpertMatrix matrix,
                             Operand dy, TensorId dx) {
  const TensorId weights = multiplied_weights(site, t, matrix);
  UnitCall call;
  call.reads = {dy.tensor, weights, t.layer.route.order, t.layer.route.offsets};
  call.writes = {dx};
  const auto op = [=, group = GroupRows(t)](const UnitRun& run) {
    return ExpertBackwardInput{group.rows(run), dy.side(run), group.matrices(run, weights, matrix),
                               run.view(dx)};
  };
  call.run = [op](const UnitRun& run) { run.kernels.expert_backward_input(run.context, op(run)); };
  call.workspace = [op](const UnitRun& run, int workers) {
    return run.kernels.expert_backward_input_workspace(op(run), workers);
  };
  call.flops = t.flops(matrix);
  call.share = t.share();
  return call;
}

UnitCall weight_gradient_call(const GroupTensors& t, ExpertMatrix matrix, Operand dy, Operand x) {
  const TensorId gradient = t.weights.gradient;
  UnitCall call;
  call.reads = {dy.tensor, x.tensor, t.layer.route.order, t.layer.route.offsets};
  call.writes = {gradient};
  const auto op = [=, group = GroupRows(t)](const UnitRun& run) {
    return ExpertBackwardWeight{group.rows(run), dy.side(run), x.side(run),
                                group.matrices(run, gradient, matrix), run.mode(gradient)};
  };
  call.run = [op](const UnitRun& run) { run.kernels.expert_backward_weight(run.context, op(run)); };
  call.workspace = [op](const UnitRun& run, int workers) {
    return run.kernels.expert_backward_weight_workspace(op(run), workers);
  };
  call.flops = t.flops(matrix);
  call.share = t.share();
  return call;
}

// --- between the products -----------------------------------------------------------------------

// Adds up the rows of each row's experts, with their weights unless `weight` is kNoTensor.
UnitCall sum_call(const ExpertTensors& t, TensorId rows, TensorId weight, TensorId y) {
  const TensorId place = t.route.place;
  UnitCall call;
  call.reads = {rows, place};
  if (weight != kNoTensor) call.reads.push_back(weight);
  call.writes = {y};
  call.run = [=](const UnitRun& run) {
    run.kernels.sum_expert_rows(run.context,
                                {run.view(rows), run.view(place), run.view(weight), run.view(y)});
  };
  return call;
}

UnitCall activation_call(const GroupTensors& t) {
  UnitCall call;
  call.reads = {t.up, t.layer.route.offsets};
  call.writes = {t.activated};
  call.run = [group = GroupRows(t), up = t.up, activated = t.activated,
              activation = t.layer.activation](const UnitRun& run) {
    run.kernels.glu_forward(run.context,
                            {run.view(up), run.view(activated), activation, group.offsets(run)});
  };
  call.share = t.share();
  return call;
}

UnitCall activation_gradient_call(const GroupTensors& t, TensorId dactivated, TensorId dup) {
  UnitCall call;
  call.reads = {t.up, dactivated, t.layer.route.offsets};
  call.writes = {dup};
  call.run = [group = GroupRows(t), up = t.up, dactivated, dup,
              activation = t.layer.activation](const UnitRun& run) {
    run.kernels.glu_backward(run.context, {run.view(up), run.view(dactivated), run.view(dup),
                                           activation, group.offsets(run)});
  };
  call.share = t.share();
  return call;
}

// The gradients behind the product with the down matrices.
struct SlotGradients {
  TensorId dh = kNoTensor;        // of the weighted activation, from where dactivated is made
  TensorId dweight = kNoTensor;   // of the slots' weights
  TensorId weighted = kNoTensor;  // the activation times the weight; kNoTensor: not wanted
};

UnitCall weigh_call(const GroupTensors& t, const SlotGradients& g) {
  const Route& route = t.layer.route;
  UnitCall call;
  call.reads = {route.order, route.offsets, route.weight, g.dh, t.activated};
  call.writes = {g.dweight, g.dh};
  if (g.weighted != kNoTensor) call.writes.push_back(g.weighted);
  call.run = [g, group = GroupRows(t), activated = t.activated](const UnitRun& run) {
    WeighExpertRows op;
    op.order = run.view(group.route.order);
    op.weight = run.view(group.route.weight);
    op.dh = run.view(g.dh);
    op.act = run.view(activated);
    op.dweight = run.view(g.dweight);
    op.dact = op.dh;
    op.weighted = run.view(g.weighted);
    op.row_range = group.offsets(run);
    run.kernels.weigh_expert_rows(run.context, op);
  };
  call.share = t.share();
  return call;
}

// Sets the gradient of the padding of a group's experts to zero.
void clear_expert_padding(const LayerSite& site, const ExpertWeights& weights) {
  if (weights.padding.empty()) return;
  UnitCall clear;
  clear.writes = weights.padding;
  clear.run = [pieces = weights.padding](const UnitRun& run) {
    if (run.mode(pieces.front()) == GradientMode::kAccumulate) return;
    for (const TensorId piece : pieces) run.kernels.fill_zero(run.context, {run.view(piece)});
  };
  site.graph.call(std::move(clear));
}

// --- the passes of a group ----------------------------------------------------------------------

// Writes the part of the forward that the backward needs, too: gate | up and the activation.
GroupTensors activated_rows(const LayerSite& site, const ExpertTensors& t,
                            const ExpertWeights& weights) {
  GroupTensors group = {t, weights};
  group.up = sorted_rows(site, "up", t, 2 * t.inner);
  group.activated = sorted_rows(site, "activated", t, t.inner);
  site.graph.call(forward_call(site, group, ExpertMatrix::kGateUp, {t.x, true}, group.up));
  if (t.biases.up != kNoTensor) {
    site.graph.call(add_bias_call(group.expert_slots(), t.biases.up, group.up));
  }
  site.graph.call(activation_call(group));
  return group;
}

// The tensors that all groups of a backward share.
struct LayerGradients {
  TensorId dy = kNoTensor;       // of the layer's result, [R,C]
  TensorId dweight = kNoTensor;  // of the slots' weights
  TensorId rows = kNoTensor;     // of the slots' inputs, sorted, [S,C]
};

void group_backward(const LayerSite& site, const GroupTensors& t, const LayerGradients& g) {
  UnitGraph& graph = site.graph;
  const bool trains = t.weights.gradient != kNoTensor;
  SlotGradients slots;
  slots.dh = sorted_rows(site, "gradient of activated", t.layer, t.layer.inner);
  slots.dweight = g.dweight;
  if (trains) slots.weighted = sorted_rows(site, "weighted", t.layer, t.layer.inner);
  clear_expert_padding(site, t.weights);
  graph.call(input_gradient_call(site, t, ExpertMatrix::kDown, {g.dy, true}, slots.dh));
  graph.call(weigh_call(t, slots));
  const ExpertBiases& biases = t.layer.biases;
  if (biases.down != kNoTensor) {
    graph.call(bias_share_call(t.expert_slots(), g.dy, biases.down, g.dweight));
  }
  if (biases.ddown != kNoTensor) {
    graph.call(bias_gradient_call(t.expert_slots(), {g.dy, t.layer.route.weight, biases.ddown}));
  }
  if (trains) {
    graph.call(weight_gradient_call(t, ExpertMatrix::kDown, {g.dy, true}, {slots.weighted, false}));
  }
  const TensorId dup = sorted_rows(site, "gradient of up", t.layer, 2 * t.layer.inner);
  graph.call(activation_gradient_call(t, slots.dh, dup));
  if (biases.dup != kNoTensor) {
    graph.call(bias_gradient_call(t.expert_slots(), {dup, kNoTensor, biases.dup}));
  }
  if (trains) {
    graph.call(weight_gradient_call(t, ExpertMatrix::kGateUp, {dup, false}, {t.layer.x, true}));
  }
  graph.call(input_gradient_call(site, t, ExpertMatrix::kGateUp, {dup, false}, g.rows));
}

// The activated rows of a group that the forward has saved.
struct SavedRows {
  TensorId up = kNoTensor;
  TensorId activated = kNoTensor;
};

// Writes the backward of the experts, from the gradient dy [R,C] of their sum. It chooses and sorts
// again, so the logits are all that is saved for the choice. `kept` has the activated rows that the
// forward has saved; it is empty where each group computes them again.
void experts_backward(const LayerSite& site, const ExpertTensors& forward, TensorId dy,
                      const std::vector<SavedRows>& kept) {
  UnitGraph& graph = site.graph;
  ExpertTensors t = forward;
  t.route = choose(site, forward.route.logits, forward.route.bias);
  add_bias_gradients(site, t.biases);
  LayerGradients g;
  g.dy = dy;
  g.dweight = graph.like(t.route.weight, "gradient of expert weights");
  g.rows = sorted_rows(site, "gradients of slots", t, t.width);
  for (std::size_t n = t.groups.size(); n-- > 0;) {
    const ExpertWeights& weights = t.groups[n];
    if (t.is_divided) graph.begin_part("experts");
    const GroupTensors group = kept.empty()
                                   ? activated_rows(site, t, weights)
                                   : GroupTensors{t, weights, kept[n].up, kept[n].activated};
    group_backward(site, group, g);
  }
  if (t.is_divided) graph.begin_part("router");
  clear_padding(site);
  write_bias_gradients(site, t.biases);
  graph.call(choice_gradient_call(site, t.route, g.dweight, graph.next_gradient(t.route.logits)));
  const TensorId dx = graph.like(t.x, "gradient of experts");
  graph.call(sum_call(t, g.rows, kNoTensor, dx));
  graph.add_to_gradient(t.x, dx);
}

}  // namespace

TensorId experts(const LayerSite& site, TensorId x) {
  UnitGraph& graph = site.graph;
  const ModelConfig& config = site.config;
  // A norm behind the experts would have its gradient in the first part of the backward, and the
  // unit's other shared parameters in the last one. Each gradient may be written in one part only.
  TERRACE_CHECK(site.layout.find(ParameterKind::kFeedForwardOutNorm) == nullptr);
  ExpertTensors t;
  t.experts = config.experts.count;
  const TensorId logits = linear(site, x,
                                 {site.weight(ParameterKind::kRouter, t.experts),
                                  site.weight(ParameterKind::kRouterBias, t.experts)},
                                 site.all_rows("router logits", t.experts));
  t.route = choose(site, logits, choice_bias(site));
  leave_router_sums(site, t.route.logits, t.route.index);
  t.biases = expert_biases(site);
  t.x = x;
  t.width = config.width;
  t.inner = config.experts.intermediate;
  t.per_row = config.experts.per_row;
  t.slots = site.batch.rows() * t.per_row;
  t.activation = gate_activation(config.feed_forward);
  add_weights(site, t);
  const TensorId rows = sorted_rows(site, "results of slots", t, t.width);
  const TensorId y = site.all_rows("experts", t.width);
  // One group's rows may be saved. Rows of several groups are computed again in the backward, so
  // that a recomputed forward ends before the experts, and the backward alone fetches them.
  std::vector<SavedRows> kept;
  for (const ExpertWeights& weights : t.groups) {
    if (t.is_divided) graph.begin_part("experts");
    const GroupTensors group = activated_rows(site, t, weights);
    graph.call(forward_call(site, group, ExpertMatrix::kDown, {group.activated, false}, rows));
    if (t.biases.down != kNoTensor) {
      graph.call(add_bias_call(group.expert_slots(), t.biases.down, rows));
    }
    if (t.groups.size() == 1) kept.push_back({group.up, group.activated});
  }
  if (t.is_divided) graph.begin_part("sum");
  graph.call(sum_call(t, rows, t.route.weight, y));
  graph.on_backward({x, t.route.logits}, [site, t, y, kept] {
    experts_backward(site, t, site.graph.gradient(y), kept);
  });
  return y;
}

std::vector<std::int32_t> even_route(const ExpertOptions& options, std::int64_t rows,
                                     std::string_view name) {
  const std::int64_t k = options.per_row;
  std::vector<std::int32_t> index;
  for (std::int64_t slot = 0; slot < rows * k; ++slot) {
    index.push_back(static_cast<std::int32_t>(slot % options.count));
  }
  for (std::int64_t r = 0; r < rows; ++r) {
    std::sort(index.begin() + r * k, index.begin() + (r + 1) * k);
  }
  std::vector<std::int32_t> order;
  std::vector<std::int32_t> places(index.size());
  std::vector<std::int32_t> offsets;
  for (std::int64_t e = 0; e < options.count; ++e) {
    offsets.push_back(static_cast<std::int32_t>(order.size()));
    for (std::size_t slot = 0; slot < index.size(); ++slot) {
      if (index[slot] != e) continue;
      places[slot] = static_cast<std::int32_t>(order.size());
      order.push_back(static_cast<std::int32_t>(slot));
    }
  }
  offsets.push_back(static_cast<std::int32_t>(order.size()));
  if (name == kChosen) return index;
  if (name == kOrder) return order;
  if (name == kPlaces) return places;
  return name == kRowsOfExperts ? offsets : std::vector<std::int32_t>();
}

}  // namespace terrace
