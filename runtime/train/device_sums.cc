#include "runtime/train/device_sums.h"

#include <fmt/format.h>

#include "base/error.h"

namespace terrace {
namespace {

bool adds_in_device_memory(const Program& program, const Op& op) {
  if (op.kind != OpKind::kAllReduce && op.kind != OpKind::kReduceScatter) return false;
  return program.buffers.at(op.find(Role::kSource)->buffer).tier == Tier::kDevice;
}

}  // namespace

DType sum_type(const Op& op, const StepModel& model) {
  if (op.lane != Lane::kTensor) return model.gradient_type;
  return op.account == Account::kGradients ? DType::kF32 : model.compute_type;
}

void check_device_sums(const Program& program, const StepModel& model,
                       const DeviceExchange* exchange) {
  if (exchange == nullptr) return;
  for (const Op& op : program.ops) {
    if (!adds_in_device_memory(program, op)) continue;
    const bool is_tensor = op.lane == Lane::kTensor;
    const std::int32_t ranks = is_tensor ? model.tensor.ranks : model.zero.ranks;
    const DType type = sum_type(op, model);
    if (exchange->adds(type, ranks)) continue;
    throw ConfigError(
        fmt::format("GPUs of {} {}-parallel ranks would add {} in {}, rounding after every one",
                    ranks, is_tensor ? "tensor" : "data", is_tensor ? "hidden states" : "gradients",
                    name_of(type)),
        is_tensor ? "train with --tensor-parallel 2, or with --precision fp32"
                  : "leave out --gradient-dtype bf16, which then is fp32");
  }
}

}  // namespace terrace
