#include "runtime/model/router_losses.h"

#include <utility>

namespace terrace {
namespace {

// Adds the targets, where a micro-batch may have padding between documents.
TensorId padded_targets(const LayerSite& site) {
  return site.batch.has_documents ? site.numbers(RowNumbers::kTargets) : kNoTensor;
}

// Adds the sums of `layers` layers in the buffer of this role.
TensorId router_sums(const LayerSite& site, Role role, std::int64_t layers) {
  return site.graph.add({.name = "router sums",
                         .dtype = DType::kF64,
                         .shape = {layers, router_sums_of(site.config.experts.count), 1, 1},
                         .role = role});
}

}  // namespace

void leave_router_sums(const LayerSite& site, TensorId logits, TensorId index) {
  const TensorId sums = router_sums(site, Role::kRouterSums, 1);
  const TensorId targets = padded_targets(site);
  UnitCall call;
  call.reads = {logits, index};
  if (targets != kNoTensor) call.reads.push_back(targets);
  call.writes = {sums};
  const auto op = [=](const UnitRun& run) {
    return RouterSums{run.view(logits), run.view(index), run.view(sums), run.view(targets)};
  };
  call.run = [op, sums](const UnitRun& run) {
    if (!run.view(sums).empty()) run.kernels.router_sums(run.context, op(run));
  };
  call.workspace = [op](const UnitRun& run, int workers) {
    return run.kernels.router_sums_workspace(op(run), workers);
  };
  site.graph.call(std::move(call));
}

// The balance loss is one of all layers together. The z-loss of a layer needs only the number of
// its rows that count. Tensor-parallel ranks add up their gradients of the router, so the losses
// have slopes on the first of them alone.
RouterLossGradient router_loss_gradient(const LayerSite& site) {
  const ExpertOptions& experts = site.config.experts;
  if (!experts.has_losses()) return {};
  const std::int64_t layers = site.config.expert_layers();
  const bool reads_all = experts.balance_coefficient != 0;
  const TensorId sums = router_sums(site, reads_all ? Role::kAllRouterSums : Role::kRouterSums,
                                    reads_all ? layers : 1);
  RouterLossGradient result;
  result.slopes = site.per_row("slopes of router losses", experts.count + 1);
  result.targets = padded_targets(site);
  UnitCall call;
  call.reads = {sums};
  call.writes = {result.slopes};
  call.scales_loss = true;
  const bool is_first = site.split.rank == 0;
  call.run = [=, slopes = result.slopes, balance = experts.balance_coefficient,
              z = experts.z_coefficient](const UnitRun& run) {
    const double scale = is_first ? run.memory.mean_scale : 0;
    run.kernels.router_slopes(run.context, {.sums = run.view(sums),
                                            .slopes = run.view(slopes),
                                            .layers = layers,
                                            .balance = balance * scale,
                                            .z = z * scale});
  };
  site.graph.call(std::move(call));
  return result;
}

}  // namespace terrace
