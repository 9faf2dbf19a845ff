#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

#include "tests/runtime/engine/engine_fixture.h"

// Narrow moments train as well as fp32 ones.
namespace terrace {
namespace {

constexpr std::int64_t kSteps = 300;
constexpr int kSeeds = 4;

ModelRuntimeOptions convergence_options() {
  ModelConfig model = tiny_model("llama", true, false);
  model = with_shape(model, {.layers = 2});
  ModelRuntimeOptions options = tiny_options(model, DType::kBF16);
  options.placement.micro_batches = 1;
  options.evaluates = false;
  return options;
}

// Returns the mean loss of the last steps of a training from the parameters of a seed.
double final_loss(ModelRuntimeOptions options, SlotForm moments, std::uint64_t seed) {
  constexpr std::int64_t kLast = 30;
  options.optimizer.slot_form = moments;
  options.optimizer.seed = seed;
  const TierPlan plan = plan_model(options);
  SilentLog log;
  ModelRuntime engine(options, plan, log);
  engine.fill_state(RandomState(seed));
  TrainedRun run;
  train_steps(engine, options, 1, kSteps, run);
  const std::vector<double>& losses = run.curve.losses;
  EXPECT_LT(losses.back(), losses.front() - 2);
  return std::accumulate(losses.end() - kLast, losses.end(), 0.0) / kLast;
}

class MomentsConvergence : public testing::TestWithParam<SlotForm> {};

// Narrow moments must change the loss little in comparison with another seed, whose result nobody
// would call a different one: by at most a tenth of the spread of four seeds. (That tenth is 0.0046
// nats here; bf16 moments are within 0.0001 and 8-bit codes within 0.0022 of fp32 moments.)
TEST_P(MomentsConvergence, FinalLossIsThatOfFp32Moments) {
  const ModelRuntimeOptions options = convergence_options();
  std::vector<double> exact, narrow;
  for (std::uint64_t seed = 1; seed <= kSeeds; ++seed) {
    exact.push_back(final_loss(options, SlotForm::kFp32, seed));
    narrow.push_back(final_loss(options, GetParam(), seed));
    EXPECT_NE(narrow.back(), exact.back());
  }
  const auto [least, most] = std::ranges::minmax(exact);
  for (std::size_t i = 0; i < exact.size(); ++i) {
    EXPECT_NEAR(narrow[i], exact[i], (most - least) / 10) << "seed " << i + 1;
  }
}

INSTANTIATE_TEST_SUITE_P(Forms, MomentsConvergence,
                         testing::Values(SlotForm::kBf16, SlotForm::kInt8),
                         [](const auto& instance) {
                           return instance.param == SlotForm::kBf16 ? "bf16" : "int8";
                         });

}  // namespace
}  // namespace terrace
