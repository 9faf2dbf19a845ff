#include "runtime/model/expert_biases.h"

#include <cstddef>
#include <utility>
#include <vector>

#include "runtime/model/columns.h"

namespace terrace {
namespace {

// Returns the rows of a group's experts.
StridedRows rows_of_group(const UnitRun& run, const ExpertSlots& slots, TensorId all) {
  StridedRows rows = whole_rows(run.view(all));
  if (!rows.empty()) {
    rows.data += static_cast<std::size_t>(slots.first * rows.stride) * size_of(rows.dtype);
  }
  rows.rows = slots.count;
  return rows;
}

// Adds the call that copies parameters side by side.
TensorId joined(const LayerSite& site, const std::vector<Weight>& parts) {
  std::int64_t columns = 0;
  std::vector<std::pair<TensorId, Columns>> copies;
  for (const Weight& part : parts) {
    const std::int64_t width = site.graph.at(part.value).columns();
    copies.push_back({part.value, {kNoTensor, columns, width}});
    columns += width;
  }
  const TensorId whole = site.graph.add({.name = "expert biases",
                                         .dtype = site.type,
                                         .shape = {site.config.experts.count, columns, 1, 1}});
  UnitCall copy;
  for (auto& [from, to] : copies) {
    copy.reads.push_back(from);
    to.matrix = whole;
  }
  copy.writes = {whole};
  copy.run = [copies](const UnitRun& run) {
    for (const auto& [from, to] : copies) {
      run.kernels.scale_rows(run.context, {whole_rows(run.view(from)), to.of(run)});
    }
  };
  site.graph.call(std::move(copy));
  return whole;
}

// Adds the call that writes some columns of a complete gradient, or adds them to what is there.
void write_gradient(const LayerSite& site, const Columns& from, TensorId gradient) {
  if (gradient == kNoTensor) return;
  UnitCall call;
  call.reads = {from.matrix};
  call.writes = {gradient};
  call.run = [=](const UnitRun& run) {
    const bool adds = run.mode(gradient) == GradientMode::kAccumulate;
    run.kernels.scale_rows(run.context, {from.of(run), whole_rows(run.view(gradient)), 1.0F, adds});
  };
  site.graph.call(std::move(call));
}

}  // namespace

TensorView ExpertSlots::offsets_of(const UnitRun& run) const {
  TensorView view = run.view(offsets);
  view.data += static_cast<std::size_t>(first) * sizeof(std::int32_t);
  view.shape[0] = count + 1;
  return view;
}

ExpertRows ExpertSlots::rows(const UnitRun& run) const {
  return {run.view(order), offsets_of(run), per_row};
}

ExpertBiases expert_biases(const LayerSite& site) {
  const std::int64_t experts = site.config.experts.count;
  ExpertBiases biases;
  if (!site.config.experts.has_bias) return biases;
  biases.gate_weight = site.weight(ParameterKind::kExpertGateBias, experts);
  biases.up_weight = site.weight(ParameterKind::kExpertUpBias, experts);
  biases.down_weight = site.weight(ParameterKind::kExpertDownBias, experts);
  biases.up = joined(site, {biases.gate_weight, biases.up_weight});
  // Tensor-parallel ranks add up their results, so one of them has the bias.
  if (site.split.rank == 0) biases.down = joined(site, {biases.down_weight});
  return biases;
}

void add_bias_gradients(const LayerSite& site, ExpertBiases& biases) {
  const auto add = [&](std::int64_t columns) {
    return site.graph.add({.name = "gradient of expert biases",
                           .dtype = DType::kF32,
                           .shape = {site.config.experts.count, columns, 1, 1}});
  };
  const bool trains_up =
      biases.gate_weight.gradient != kNoTensor || biases.up_weight.gradient != kNoTensor;
  if (trains_up) biases.dup = add(2 * site.config.experts.intermediate);
  if (biases.down_weight.gradient != kNoTensor) biases.ddown = add(site.config.width);
}

void write_bias_gradients(const LayerSite& site, const ExpertBiases& biases) {
  if (biases.dup != kNoTensor) {
    const std::int64_t half = site.graph.at(biases.dup).columns() / 2;
    write_gradient(site, {biases.dup, 0, half}, biases.gate_weight.gradient);
    write_gradient(site, {biases.dup, half, half}, biases.up_weight.gradient);
  }
  if (biases.ddown == kNoTensor) return;
  write_gradient(site, {biases.ddown, 0, site.graph.at(biases.ddown).columns()},
                 biases.down_weight.gradient);
}

UnitCall add_bias_call(const ExpertSlots& slots, TensorId biases, TensorId y) {
  UnitCall call;
  call.reads = {slots.order, slots.offsets, biases, y};
  call.writes = {y};
  call.run = [=](const UnitRun& run) {
    run.kernels.add_expert_bias(run.context,
                                {slots.rows(run), rows_of_group(run, slots, biases), run.view(y)});
  };
  call.share = slots.share;
  return call;
}

UnitCall bias_gradient_call(const ExpertSlots& slots, const BiasGradient& gradient) {
  UnitCall call;
  call.reads = {slots.order, slots.offsets, gradient.dy};
  if (gradient.weight != kNoTensor) call.reads.push_back(gradient.weight);
  call.writes = {gradient.dbiases};
  call.run = [=](const UnitRun& run) {
    const bool is_by_row = gradient.weight != kNoTensor;
    run.kernels.expert_bias_gradient(run.context, {slots.rows(run),
                                                   {run.view(gradient.dy), is_by_row},
                                                   run.view(gradient.weight),
                                                   rows_of_group(run, slots, gradient.dbiases)});
  };
  call.share = slots.share;
  return call;
}

UnitCall bias_share_call(const ExpertSlots& slots, TensorId dy, TensorId biases, TensorId dweight) {
  UnitCall call;
  call.reads = {slots.order, slots.offsets, dy, biases, dweight};
  call.writes = {dweight};
  call.run = [=](const UnitRun& run) {
    run.kernels.add_bias_share(run.context, {slots.rows(run),
                                             {run.view(dy), true},
                                             rows_of_group(run, slots, biases),
                                             run.view(dweight)});
  };
  call.share = slots.share;
  return call;
}

}  // namespace terrace
