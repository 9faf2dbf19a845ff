#include "runtime/model/shared_expert.h"

#include <utility>

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

TensorId gated_by_share(const LayerSite& site, TensorId x, TensorId result) {
  const TensorId logit = linear(site, x, {site.weight(ParameterKind::kShare, 1), {}},
                                site.all_rows("logits of shares", 1));
  return gate(site, result, logit);
}

}  // namespace terrace
