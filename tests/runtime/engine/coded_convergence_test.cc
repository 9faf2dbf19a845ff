#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <numeric>

#include "tests/runtime/engine/ranks_fixture.h"

// Compares the final losses of ranks that exchange codes with the losses of ranks that do not.
namespace terrace {
namespace {

constexpr std::int64_t kSteps = 300;
constexpr std::int64_t kLast = 30;
constexpr std::size_t kSeeds = 4;

ModelRuntimeOptions convergence_options(const WireForms& wire) {
  const ModelConfig model = with_shape(tiny_model("llama", true, false), {.layers = 2});
  ModelRuntimeOptions options = tiny_options(model, DType::kBF16);
  options.placement.micro_batches = 1;
  options.zero_stage = 3;
  options.wire = wire;
  return options;
}

// Returns the mean loss of the last steps of a training by two ranks from the parameters of a seed.
double final_loss(const WireForms& wire, std::uint64_t seed) {
  ModelRuntimeOptions options = convergence_options(wire);
  options.optimizer.seed = seed;
  const MeshShape shape = {.data = 2};
  auto worlds = make_thread_communicators(shape.ranks(), "world");
  std::array<double, 2> means{};
  std::vector<std::jthread> threads;
  for (std::size_t r = 0; r < worlds.size(); ++r) {
    threads.emplace_back([&, r] {
      as_rank(*worlds[r], options, shape, [&](const ModelRuntimeOptions& own) {
        const TierPlan plan = plan_model(own);
        SilentLog log;
        ModelRuntime engine(own, plan, log);
        engine.fill_state(RandomState(seed));
        TrainedRun run;
        train_steps(engine, own, 1, kSteps, run);
        const std::vector<double>& losses = run.curve.losses;
        EXPECT_LT(losses.back(), losses.front() - 2);
        means[r] = std::accumulate(losses.end() - kLast, losses.end(), 0.0) / kLast;
      });
    });
  }
  threads.clear();
  EXPECT_EQ(means[0], means[1]);
  return means[0];
}

std::array<double, kSeeds> final_losses(const WireForms& wire) {
  std::array<double, kSeeds> losses{};
  for (std::size_t s = 0; s < kSeeds; ++s) losses.at(s) = final_loss(wire, s + 1);
  return losses;
}

class CodedConvergence : public testing::Test {
 protected:
  static void SetUpTestSuite() { plain_ = final_losses({}); }
  // Returns the largest difference to the training with the same seed and without codes, as a share
  // of the spread of the seeds.
  static double deviation_of(const WireForms& wire) {
    const std::array<double, kSeeds> coded = final_losses(wire);
    const auto [least, most] = std::ranges::minmax(plain_);
    double largest = 0;
    for (std::size_t s = 0; s < kSeeds; ++s) {
      EXPECT_NE(coded.at(s), plain_.at(s));
      largest = std::max(largest, std::abs(coded.at(s) - plain_.at(s)));
    }
    RecordProperty("deviation", std::to_string(largest / (most - least)));
    return largest / (most - least);
  }

 private:
  static std::array<double, kSeeds> plain_;
};
std::array<double, kSeeds> CodedConvergence::plain_{};

// Codes must change the loss little in comparison with another seed, whose result nobody would call
// a different one.
TEST_F(CodedConvergence, Int8EndsWhereAllBitsEnd) {
  EXPECT_LT(deviation_of({.gradients = WireForm::kInt8}), 0.1);
}

TEST_F(CodedConvergence, Int8ParametersEndWhereAllBitsEnd) {
  EXPECT_LT(deviation_of({.gradients = WireForm::kInt8, .parameters = WireForm::kInt8}), 0.1);
}

// Codes of 4 bits change the loss by more than that: by 1.4 times the spread of the seeds with
// error feedback, and by 3.2 times without.
TEST_F(CodedConvergence, Int4EndsNearerWithErrorFeedback) {
  const double with = deviation_of({.gradients = WireForm::kInt4, .keeps_errors = true});
  EXPECT_LT(with, 0.6 * deviation_of({.gradients = WireForm::kInt4}));
}

}  // namespace
}  // namespace terrace
