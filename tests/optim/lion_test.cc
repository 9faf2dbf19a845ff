#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <random>
#include <vector>

#include "memory/host/worker_arena.h"
#include "optim/rules/rules.h"
#include "tests/optim/rule_state.h"

namespace terrace {
namespace {

using test::ParameterKind;
using test::UpdateState;

const UpdateRule& lion() { return update_rule<rules::Lion>(); }

// The sequence of optim/rules/lion.inl by hand, for numbers that are exact in fp32 at every step.
TEST(LionReference, FollowsTheWrittenSequence) {
  UpdateState state(lion(), 1, 0, ParameterKind::kF32);
  state.gradient.elements()[0] = 8;
  state.master.elements()[0] = 2;
  state.slots[0].elements()[0] = -1;
  const StepScalars scalars = {.learning_rate = 0.25F, .gradient_scale = 0.5F};
  lion().reference(state.update({{0.875F, 0.5F}, 0.5F}, scalars));
  // g = 4, c = -1 + 5/8 < 0, p = 2 - 0.125 * 2 + 0.25, m = -1 + 5/2
  EXPECT_EQ(state.master.elements()[0], 2.0F);
  EXPECT_EQ(state.parameter.elements()[0], 2.0F);
  EXPECT_EQ(state.slots[0].elements()[0], 1.5F);
}

// Checks sign() of any c that a step may come to. Here c is the gradient, as beta1 is 0.
TEST(LionReference, TakesItsStepByTheSignAlone) {
  struct Case {
    float c, p;
  };
  constexpr Case kCases[] = {{1e30F, 0.5F}, {1e-45F, 0.5F}, {-1e-45F, 1.5F}, {HUGE_VALF, 0.5F},
                             {-3.0F, 1.5F}, {-0.0F, 1.0F},  {0.0F, 1.0F},    {-HUGE_VALF, 1.5F}};
  for (const Case& one : kCases) {
    UpdateState state(lion(), 1, 0, ParameterKind::kMaster);
    state.gradient.elements()[0] = one.c;
    state.master.elements()[0] = 1;
    lion().reference(state.update({{0, 0.5F}, 0}, {.learning_rate = 0.5F}));
    EXPECT_EQ(state.master.elements()[0], one.p) << one.c;
  }
  UpdateState state(lion(), 1, 0, ParameterKind::kMaster);
  state.gradient.elements()[0] = NAN;
  lion().reference(state.update({{0.9F, 0.99F}, 0}, {.learning_rate = 0.5F}));
  EXPECT_TRUE(std::isnan(state.master.elements()[0]));
  EXPECT_TRUE(std::isnan(state.slots[0].elements()[0]));
}

// Lion in fp64, in the words of the paper, and how far ours may be from it. A rounded result is
// within u of itself, and 1 - beta is exact for a beta of 1/2 or more. The sign is the same where c
// is farther from zero than its own error. A step then adds only two roundings to the error of p,
// and the rounding of the decay's factor.
struct WideLion {
  double p, m = 0;
  double p_error = 0, m_error = 0, c_error = 0;

  // Returns c.
  double step(double g, const RuleOptions& options, double rate) {
    constexpr double kUnit = 0x1.0p-24;
    const double beta1 = options.values[0];
    const double beta2 = options.values[1];
    const double decay = rate * options.weight_decay;
    const double c = beta1 * m + (1 - beta1) * g;
    const double change = std::abs(g - m) + m_error;
    c_error = beta1 * m_error + (1 - beta1) * kUnit * change;
    c_error += kUnit * (std::abs(c) + c_error);
    p_error += kUnit * decay * std::abs(p) + 2 * kUnit * (std::abs(p) + rate + p_error);
    p -= rate * ((c > 0 ? 1.0 : c < 0 ? -1.0 : 0.0) + options.weight_decay * p);
    m = beta2 * m + (1 - beta2) * g;
    m_error = beta2 * m_error + (1 - beta2) * kUnit * change;
    m_error += kUnit * (std::abs(m) + m_error);
    return c;
  }
};

class LionAgainstFp64 : public testing::TestWithParam<float> {};

TEST_P(LionAgainstFp64, StaysWithinTheBoundFor100Steps) {
  constexpr std::size_t kElements = 1000;
  constexpr float kRate = 1e-3F;
  const RuleOptions options = {{0.9F, 0.99F}, GetParam()};
  WorkerArena workers(2);
  KernelContext context;
  context.workers = &workers;
  UpdateState state(lion(), kElements, 0, ParameterKind::kMaster);
  std::mt19937 random(7);
  const auto unit = [&] { return static_cast<float>(random() >> 8) * 0x1.0p-23F - 1.0F; };
  std::vector<WideLion> wide;
  for (float& p : state.master.elements()) {
    p = unit();
    wide.push_back({p});
  }
  const std::vector<WideLion> start = wide;
  std::size_t turned = 0;  // steps against the gradient's sign
  for (int t = 1; t <= 100; ++t) {
    for (std::size_t i = 0; i < kElements; ++i) {
      const float g = unit();
      state.gradient.elements()[i] = g;
      const double c = wide[i].step(g, options, kRate);
      ASSERT_GT(std::abs(c), wide[i].c_error) << "another seed: this one comes too near to zero";
      turned += (c > 0) == (g > 0) ? 0 : 1;
    }
    lion().cpu(context, state.update(options, {.learning_rate = kRate}));
    for (std::size_t i = 0; i < kElements; ++i) {
      ASSERT_LT(wide[i].p_error, 4e-5);
      ASSERT_NEAR(state.master.elements()[i], wide[i].p, wide[i].p_error) << t << " " << i;
      ASSERT_NEAR(state.slots[0].elements()[i], wide[i].m, wide[i].m_error) << t << " " << i;
    }
  }
  EXPECT_GT(turned, 1000U);
  double moved = 0;
  for (std::size_t i = 0; i < kElements; ++i) {
    moved = std::max(moved, std::abs(wide[i].p - start[i].p));
  }
  EXPECT_GT(moved, 20 * kRate);
}

INSTANTIATE_TEST_SUITE_P(Decays, LionAgainstFp64, testing::Values(0.0F, 0.1F));

}  // namespace
}  // namespace terrace
