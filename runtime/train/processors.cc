#include "runtime/train/processors.h"

#include <fmt/format.h>

#include "kernels/cpu/cpu_arithmetic.h"
#include "memory/cuda/cuda_device.h"
#include "runtime/config/version.h"
#include "runtime/plan/step_flops.h"

namespace terrace {

std::string arithmetic_of(const MachineShare& machine) {
  return fmt::format(
      "Terrace {}, {}", terrace_version(),
      machine.gpu.has_value() ? describe_cuda_device(machine.gpu->ordinal) : cpu_arithmetic());
}

double seconds_at_stated_speed(const ModelRuntimeOptions& options, const TierPlan& plan,
                               const MachineShare& machine, const RankGroup& ranks) {
  const StepFlops flops = flops_of_step(plan.training.program, plan.model);
  const double all =
      ranks.sum(flops.necessary) + flops.masked_halves * static_cast<double>(ranks.data_ranks());
  if (!machine.gpu.has_value() || options.compute_type == DType::kF32) return 0;
  const auto stated = stated_flops_per_s(describe_cuda_device(machine.gpu->ordinal));
  return stated.has_value() ? all / (*stated * plan.model.ranks()) : 0;
}

}  // namespace terrace
