// An optimizer whose state lives on a drive, for a trainer that keeps its activations to itself:
// its units use parameters and gradients only. Parameters, gradients and AdamW's state for them
// move chunk by chunk while the trainer computes. The same updates in memory must give the same
// bits.
//
//   adamw_on_nvme DIRECTORY    a directory of the drive; written files go away with the program

#include <cstdio>

#include "runtime/engine/tier_runtime.h"

using namespace terrace;
constexpr std::int32_t kUnits = 4;
constexpr std::int64_t kElements = 1 << 20;  // of a unit
constexpr std::int64_t kSteps = 3;

// Its backward writes a made-up gradient. A real trainer would write the one that it has computed.
struct Trainer final : StepCompute {
  void run(const KernelContext&, const ComputeTask& task, const UnitMemory& memory) override {
    auto* gradient = reinterpret_cast<float*>(memory.of(Role::kGradient));
    if (task.pass == UnitPass::kForward) return ++steps, void();
    for (std::int64_t i = 0; i < kElements; ++i) {
      gradient[i] = 1e-3F * float((i + task.unit + steps) % 7);
    }
  }
  std::int64_t steps = 0;
};

std::vector<float> train(const TierRuntimeOptions& options) {
  const UnitModel unit = {.forward = {{}}, .backward = {{.writes = {{Role::kGradient}}}}};
  ComputeModel units = {.compute_type = DType::kF32};
  for (int u = 0; u < kUnits; ++u) units.add(unit, {.padded_elements = kElements});
  const TierPlan plan = plan_tiers(units, options);
  Trainer trainer;
  SilentLog log;
  TierRuntime runtime(options, plan, trainer, log);
  runtime.fill_state([](StateField field, std::int32_t, std::int64_t, std::span<float> out) {
    for (float& value : out) value = field == StateField::kMaster ? 1.0F : 0.0F;
  });
  for (std::int64_t step = 1; step <= kSteps; ++step) {
    runtime.begin_step({.step = step, .learning_rate = 1e-3});
    runtime.finish_step();
  }
  runtime.drain();
  std::vector<float> parameters(kUnits * kElements);
  for (std::int32_t u = 0; u < kUnits; ++u) {
    runtime.read_state(StateField::kMaster, u, 0,
                       std::span(parameters).subspan(u * kElements, kElements));
  }
  return parameters;
}

int main(int count, char** arguments) try {
  if (count != 2) return std::fprintf(stderr, "usage: adamw_on_nvme DIRECTORY\n"), 2;
  TierRuntimeOptions options;
  const std::vector<float> in_memory = train(options);
  options.nvme.directories = {{arguments[1], {}}};
  options.placement.has_nvme = true;
  options.placement.homes.fill(Tier::kNvme);
  if (train(options) != in_memory) throw CorruptData("from the drive come other bits", "");
  std::printf("%zu parameters, the same bits\n", in_memory.size());
} catch (const std::exception& problem) {
  return std::fprintf(stderr, "adamw_on_nvme: %s\n", problem.what()), 1;
}
