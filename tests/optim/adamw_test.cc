#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>

#include "memory/host/worker_arena.h"
#include "optim/grad_norm.h"
#include "optim/rules/rules.h"
#include "tests/optim/rule_state.h"

namespace terrace {
namespace {

using test::ParameterKind;
using test::UpdateState;

const UpdateRule& adamw() { return update_rule<rules::AdamW>(); }

struct AdamWOptions {
  float beta1 = 0.9F;
  float beta2 = 0.95F;
  float epsilon = 1e-8F;
  float weight_decay = 0;

  operator RuleOptions() const { return {{beta1, beta2, epsilon}, weight_decay}; }
};

// The sequence of optim/rules/adamw.inl by hand, for numbers that are exact in fp32 at every step.
TEST(AdamWReference, FollowsTheWrittenSequence) {
  UpdateState state(adamw(), 1, 0, ParameterKind::kF32);
  state.gradient.elements()[0] = 8.0F;
  state.master.elements()[0] = 2.0F;
  state.slots[0].elements()[0] = 2.0F;
  state.slots[1].elements()[0] = 8.0F;
  const AdamWOptions options = {
      .beta1 = 0.5F, .beta2 = 0.75F, .epsilon = 1.0F, .weight_decay = 0.5F};
  const StepScalars scalars = {
      .learning_rate = 0.25F, .gradient_scale = 0.5F, .of_rule = {0.25F, 0.25F}};
  adamw().reference(state.update(options, scalars));
  // g = 4, m = 2 + (4 - 2)/2 = 3, v = 8 + (16 - 8)/4 = 10, mh = 12, d = sqrt(40) + 1
  EXPECT_EQ(state.slots[0].elements()[0], 3.0F);
  EXPECT_EQ(state.slots[1].elements()[0], 10.0F);
  const float decayed = 1.75F;  // 2 - 0.125 * 2
  const float expected = std::fma(-0.25F, 12.0F / (std::sqrt(40.0F) + 1.0F), decayed);
  EXPECT_EQ(state.master.elements()[0], expected);
  EXPECT_EQ(state.parameter.elements()[0], expected);
}

TEST(AdamWReference, RoundsBf16ParametersTiesAway) {
  UpdateState state(adamw(), 2, 0, ParameterKind::kBf16);
  const float tie = std::bit_cast<float>(0x3f808000U);  // halfway above 0x3f80, which is even
  std::ranges::fill(state.master.elements(), tie);
  state.master.elements()[1] = -tie;
  const StepScalars scalars = {.learning_rate = 0.0F, .of_rule = {1, 1}};
  adamw().reference(state.update(AdamWOptions(), scalars));
  EXPECT_EQ(state.master.elements()[0], tie);
  EXPECT_EQ(state.half_parameter.elements()[0].bits, 0x3f81);
  EXPECT_EQ(state.half_parameter.elements()[1].bits, 0xbf81);
}

// fp64 AdamW in the words of the paper, on the same gradients.
struct WideAdamW {
  double p, m = 0, v = 0;
  void step(double g, const AdamWOptions& options, const StepScalars& scalars) {
    const double lr = scalars.learning_rate;
    m = options.beta1 * m + (1.0 - options.beta1) * g;
    v = options.beta2 * v + (1.0 - options.beta2) * g * g;
    const double mh = m / scalars.of_rule[0];
    const double vh = v / scalars.of_rule[1];
    p -= lr * options.weight_decay * p;
    p -= lr * mh / (std::sqrt(vh) + options.epsilon);
  }
};

class AdamWAgainstFp64 : public testing::TestWithParam<bool> {};

// Let u be 2^-24, and the size of gradients in [G/2, G]. The rounding errors of g and of each step
// leave m within 13uG and v within 23uG^2 of the exact recurrence (each step adds about 1.3u and
// shrinks the earlier errors by beta). So mh/d, which is at most 2, is within 150u, and each of the
// two fma adds u|p|. 1 - beta is computed from the rounded beta; its own rounding adds u/2
// relative, which is within the 150. The rounded reciprocals of the bias corrections add u to mh
// and u/2 to d: 3u of mh/d.
TEST_P(AdamWAgainstFp64, StaysWithinTheBoundFor100Steps) {
  constexpr int kSteps = 100;
  constexpr double kUnit = 0x1.0p-24;
  constexpr std::size_t kElements = 1000;
  const double max_norm = GetParam() ? 3.0 : 0.0;
  const AdamWOptions options = {
      .beta1 = 0.9F, .beta2 = 0.95F, .epsilon = 1e-8F, .weight_decay = GetParam() ? 0.1F : 0.0F};
  WorkerArena workers(2);
  KernelContext context;
  context.workers = &workers;
  UpdateState state(adamw(), kElements, 0, ParameterKind::kMaster);
  std::mt19937 random(7);
  const auto unit = [&] { return static_cast<float>(random() >> 8) * 0x1.0p-23F - 1.0F; };
  for (float& p : state.master.elements()) p = unit();
  const std::vector<float> start(state.master.elements().begin(), state.master.elements().end());
  std::vector<WideAdamW> wide;
  for (const float p : start) wide.push_back({p});
  double largest = 0, rate_sum = 0;
  for (int t = 1; t <= kSteps; ++t) {
    double squares = 0;
    for (float& g : state.gradient.elements()) {
      g = std::copysign(0.5F + 0.25F * (1.0F + unit()), random() % 4 == 0 ? -1.0F : 1.0F);
      squares += double{g} * g;
    }
    StepScalars scalars;
    scalars.learning_rate = 1e-2F / std::floor(1.0F + static_cast<float>(t) / 50);
    scalars.gradient_scale = clip_coefficient(std::sqrt(squares), max_norm);
    scalars.of_rule[0] = static_cast<float>(1.0 - std::pow(double{options.beta1}, t));
    scalars.of_rule[1] = static_cast<float>(1.0 - std::pow(double{options.beta2}, t));
    rate_sum += scalars.learning_rate;
    EXPECT_EQ(scalars.gradient_scale < 0.5F, GetParam());
    adamw().cpu(context, state.update(options, scalars));
    for (std::size_t i = 0; i < kElements; ++i) {
      wide[i].step(double{state.gradient.elements()[i]} * scalars.gradient_scale, options, scalars);
      largest = std::max(largest, std::abs(wide[i].p));
    }
  }
  const double bound = kUnit * (2 * kSteps * largest + 153 * rate_sum);
  EXPECT_LT(bound, 1e-4);
  double moved = 0;
  for (std::size_t i = 0; i < kElements; ++i) {
    ASSERT_NEAR(state.master.elements()[i], wide[i].p, bound) << "element " << i;
    moved = std::max(moved, std::abs(wide[i].p - double{start[i]}));
  }
  EXPECT_GT(moved, 0.2);
}

INSTANTIATE_TEST_SUITE_P(DecayAndClipping, AdamWAgainstFp64, testing::Bool());

TEST(AdamWDeathTest, RefusesViewsOfDifferentLengths) {
  UpdateState state(adamw(), 8, 0, ParameterKind::kF32);
  const StepScalars scalars;
  ParameterUpdate update = state.update(AdamWOptions(), scalars);
  update.slots[1].shape[0] = 7;
  EXPECT_DEATH(adamw().reference(update), "7 and 8");
}

}  // namespace
}  // namespace terrace
