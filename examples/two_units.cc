// Two units of another trainer, with loops of their own, trained with all state on NVMe. The same
// training with everything in memory must give the same losses, bit by bit.
//
//   two_units DIRECTORY    any directory of the drive; written files go away when the program ends
#include <cstdio>

#include "runtime/engine/tier_runtime.h"

using namespace terrace;
using enum Role;
constexpr int kRows = 16, kIn = 64, kWidth = 256, kMicroBatches = 2, kSteps = 30;
constexpr std::int64_t kElements[] = {padded_elements(kWidth * kIn), padded_elements(kWidth)};
// Describes what each pass reads and writes. The model is h = W x, then w . max(h, 0), which should
// be x[0] - x[1]; the loss is half the squared error. The second unit is a head: its backward
// includes its forward.
ComputeModel describe() {
  UnitModel first = {.groups = {0}}, second = {.kind = UnitKind::kHead, .groups = {1}};
  first.forward = {{.reads = {{kTokens}}, .writes = {{kHiddenOut}}}};
  first.backward = {{.reads = {{kTokens}, {kHiddenGradient}}, .writes = {{kGradient}}}};
  second.forward = second.backward = {{.reads = {{kTokens}, {kHidden}}, .writes = {{kLosses}}}};
  second.backward[0].writes = {{kLosses}, {kHiddenGradientOut}, {kGradient}};
  return {.units = {first, second},
          .groups = {{.unit = 0, .padded_elements = kElements[0]},
                     {.unit = 1, .padded_elements = kElements[1]}},
          .compute_type = DType::kF32,
          .hidden_bytes = 4UL * kRows * kWidth,
          .tokens_bytes = 4UL * kRows * kIn};
}
struct TwoUnits final : StepCompute {
  void run(const KernelContext&, const ComputeTask& task, const UnitMemory& memory) override {
    const auto at = [&](Role role) { return reinterpret_cast<float*>(memory.of(role)); };
    const bool adds = memory.gradient_mode == GradientMode::kAccumulate;
    const float *x = at(kTokens), *w = at(kParameters), *h = at(kHidden), *dh = at(kHiddenGradient);
    std::vector<float> dw(kElements[task.unit]);  // padding stays zero
    for (int j = 0; task.unit == 0 && j < kRows * kWidth; ++j) {
      float sum = 0;
      for (int k = 0, n = j % kWidth * kIn; k < kIn; ++k, ++n) {
        sum += w[n] * x[j / kWidth * kIn + k];
        if (dh != nullptr) dw[n] += dh[j] * x[j / kWidth * kIn + k];
      }
      if (dh == nullptr) at(kHiddenOut)[j] = sum;
    }
    double loss = 0;
    for (int r = 0; task.unit == 1 && r < kRows; ++r, x += kIn, h += kWidth) {
      float error = x[1] - x[0];
      for (int i = 0; i < kWidth; ++i) error += h[i] > 0 ? w[i] * h[i] : 0;
      loss += 0.5 * error * error;
      for (int i = 0; task.pass == UnitPass::kBackward && i < kWidth; ++i) {
        const float scaled = h[i] > 0 ? error * memory.gradient_scale : 0;
        at(kHiddenGradientOut)[r * kWidth + i] = scaled * w[i];
        dw[i] += scaled * h[i];
      }
    }
    if (task.unit == 1) *reinterpret_cast<double*>(memory.of(kLosses)) = loss;
    for (std::size_t n = 0; at(kGradient) != nullptr && n < dw.size(); ++n)
      at(kGradient)[n] = dw[n] + (adds ? at(kGradient)[n] : 0);
  }
};
std::vector<double> train(TierRuntimeOptions options) {
  options.placement.micro_batches = kMicroBatches;
  const TierPlan plan = plan_tiers(describe(), options);
  TwoUnits compute;
  SilentLog log;
  TierRuntime runtime(options, plan, compute, log);
  runtime.fill_state([](StateField field, int, std::int64_t begin, std::span<float> out) {
    for (float& p : out) p = field == StateField::kMaster ? 1e-3F * float(begin++ * 37 % 101) : 0;
  });
  std::vector<float> x;
  while (x.size() < kMicroBatches * kRows * kIn) x.push_back(0.01F * float(x.size() * 71 % 89));
  std::vector<double> losses;
  for (int step = 1; step <= kSteps; ++step) {
    runtime.begin_step({step, std::as_bytes(std::span(x)), kMicroBatches * kRows, 1e-3});
    losses.push_back(runtime.finish_step().result.loss);
  }
  return losses;
}
int main(int count, char** arguments) try {
  if (count != 2) return std::fprintf(stderr, "usage: two_units DIRECTORY\n"), 2;
  TierRuntimeOptions drive = {.nvme = {.directories = {{arguments[1], {}}}}};
  drive.placement.has_nvme = true;
  drive.placement.homes.fill(Tier::kNvme);
  if (train(drive) != train({})) throw CorruptData("from the drive come other bits", "");
  std::printf("the same losses, bit by bit\n");
} catch (const std::exception& problem) {
  return std::fprintf(stderr, "two_units: %s\n", problem.what()), 1;
}
