#include "runtime/model/shared_expert.h"

#include <utility>

#include "base/check.h"

namespace terrace {
namespace {

// The tensors of the gate: the shared expert's result, a logit for each row, and the product.
struct GateTensors {
  TensorId x, logit, y;
};

void gate_backward(UnitGraph& graph, const GateTensors& t) {
  const TensorId dy = graph.gradient(t.y);
  const TensorId dx = graph.next_gradient(t.x);
  const TensorId dlogit = graph.next_gradient(t.logit);
  UnitCall call;
  call.reads = {t.x, t.logit, dy};
  call.writes = {dx, dlogit};
  call.run = [=](const UnitRun& run) {
    run.kernels.gate_rows_backward(run.context, {run.view(t.x), run.view(t.logit), run.view(dy),
                                                 run.view(dx), run.view(dlogit)});
  };
  graph.call(std::move(call));
}

// Multiplies the rows of x with the sigmoids of their logits.
TensorId gate(const LayerSite& site, TensorId x, TensorId logit) {
  UnitGraph& graph = site.graph;
  const GateTensors t = {x, logit, graph.like(x, "gated shared expert")};
  UnitCall call;
  call.reads = {t.x, t.logit};
  call.writes = {t.y};
  call.run = [t](const UnitRun& run) {
    run.kernels.gate_rows(run.context, {run.view(t.x), run.view(t.logit), run.view(t.y)});
  };
  graph.call(std::move(call));
  graph.on_backward({x, logit}, [&graph, t] { gate_backward(graph, t); });
  return t.y;
}

}  // namespace

TensorId shared_expert(const LayerSite& site, TensorId x) {
  using Kind = ParameterKind;
  const ExpertOptions& options = site.config.experts;
  TERRACE_CHECK(options.shared_intermediate > 0);
  const TensorId up =
      linear(site, x, {site.joined_weight({Kind::kSharedGate, Kind::kSharedUp}), {}},
             site.all_rows("shared up", 2 * options.shared_intermediate));
  const TensorId down =
      linear(site, activation(site, up), {site.weight(Kind::kSharedDown, site.config.width), {}},
             site.all_rows("shared expert", site.config.width));
  if (!options.gates_shared) return down;
  return gate(site, down,
              linear(site, x, {site.weight(Kind::kSharedScore, 1), {}},
                     site.all_rows("logits of shares", 1)));
}

}  // namespace terrace
