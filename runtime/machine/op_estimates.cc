#include "runtime/machine/op_estimates.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <iterator>
#include <optional>

#include "kernels/head_chunk.h"

namespace terrace {
namespace {

std::optional<UnitPass> pass_of(OpKind kind) {
  switch (kind) {
    case OpKind::kForward:
      return UnitPass::kForward;
    case OpKind::kRecompute:
      return UnitPass::kRecompute;
    case OpKind::kBackward:
      return UnitPass::kBackward;
    default:
      return std::nullopt;
  }
}

// Returns the share of the rate of large products that a product of this size reaches. Between two
// points of the curve it is interpolated over the logarithm of the FLOPs; beyond an end it is the
// share at that end.
double product_share(const std::vector<ProductSpeed>& curve, double flops) {
  if (curve.empty()) return 1;
  const auto above = std::ranges::upper_bound(curve, flops, {}, &ProductSpeed::flops);
  if (above == curve.begin()) return above->share;
  const ProductSpeed& below = *std::prev(above);
  if (above == curve.end()) return below.share;
  const double part = std::log(flops / below.flops) / std::log(above->flops / below.flops);
  return std::lerp(below.share, above->share, part);
}

// Returns the bytes that pass through memory between the head's products: a pass over the logits,
// and the sums of the chunks' gradients.
double bytes_between_products(const KernelCost& cost, const KernelRates& rates) {
  const HeadLogits& logits = cost.logits;
  if (logits.rows == 0) return 0;
  const std::int64_t chunk = head_chunk_rows(logits.columns, rates.logits_bytes_most);
  const std::int64_t chunks = (logits.rows + chunk - 1) / chunk;
  return rates.logit_pass_bytes * logits.elements() +
         2 * static_cast<double>(chunks) * cost.chunk_sum_bytes;
}

double seconds_of(const KernelCost& cost, const KernelRates& rates) {
  const double share =
      cost.is_attention ? rates.attention_share : product_share(rates.product_curve, cost.flops);
  const double flops_per_s = rates.flops_per_s * share;
  return rates.launch_s +
         std::max(cost.flops / flops_per_s, cost.bytes / rates.memory_bytes_per_s) +
         bytes_between_products(cost, rates) / rates.memory_bytes_per_s;
}

}  // namespace

KernelRates kernel_rates(const Machine& machine, const MachineProfile& profile, DType type) {
  // cuDNN's attention, beside products of 4096 x 4096 x 4096 in the same run, forward and backward
  // together: bench/results/nvidia-h100-2026-11-26 and nvidia-h200-2026-11-23.
  constexpr double kAttentionShare = 0.45;
  // Our own attention, which computes fp32 on devices, with 12 heads of 64 elements, beside
  // products in fp32: trace-gpt2_fp32 in bench/results/nvidia-h200-2026-11-29, less the estimates
  // of its products and norms.
  constexpr double kFp32AttentionShare = 0.025;
  constexpr double kDeviceLaunchS = 5e-6;
  constexpr double kHostLaunchS = 1e-6;
  return {.flops_per_s = profile.flops_per_s,
          .product_curve = machine.product_curve,
          .attention_share =
              machine.devices > 0 && type == DType::kF32 ? kFp32AttentionShare : kAttentionShare,
          .memory_bytes_per_s = profile.compute_bytes_per_s,
          .launch_s = machine.devices > 0 ? kDeviceLaunchS : kHostLaunchS,
          .logits_bytes_most = machine.devices > 0 ? kGpuHeadLogitsBytes : kHeadLogitsBytes,
          .logit_pass_bytes = static_cast<double>(sizeof(float) + size_of(type))};
}

void add_kernels(const ModelRuntimeOptions& options, const Program& program, KernelsOfOps& ops) {
  const UnitCompute compute = unit_compute_of(options);
  for (const Op& op : program.ops) {
    const std::optional<UnitPass> pass = pass_of(op.kind);
    if (!pass || op.lane != Lane::kCompute) continue;
    const auto [known, is_new] = ops.try_emplace(class_of(program, op));
    if (!is_new) continue;
    known->second.kernels = compute.kernel_costs({*pass, op.step, op.unit}, program.micro_batches);
    known->second.work = work_of(program, op);
  }
}

void estimate_ops(const KernelsOfOps& ops, const KernelRates& rates, MachineProfile& profile) {
  for (const auto& [op_class, op] : ops) {
    double seconds = 0;
    for (const KernelCost& kernel : op.kernels) seconds += seconds_of(kernel, rates);
    profile.seconds_per_work[op_class] = seconds / op.work;
  }
}

}  // namespace terrace
