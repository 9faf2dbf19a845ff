#include <gtest/gtest.h>

#include <bit>
#include <cstdint>
#include <limits>
#include <string>
#include <tuple>
#include <vector>

#include "memory/host/worker_arena.h"
#include "optim/update_rules.h"
#include "tests/kernels/every_target.h"
#include "tests/optim/rule_state.h"

namespace terrace {
namespace {

using test::decaying_options;
using test::on_every_target;
using test::ParameterKind;
using test::second_scalars;
using test::UpdateState;
using test::usable_targets;

struct Case {
  std::int64_t n, offset;
  int workers;
};

// The rule of a test. Every test of this file runs for every rule, except those that say otherwise.
class RuleCpu : public testing::TestWithParam<const UpdateRule*> {
 protected:
  const UpdateRule& rule_ = *GetParam();
  const StepScalars scalars_ = second_scalars(rule_);
};

INSTANTIATE_TEST_SUITE_P(Rules, RuleCpu, testing::ValuesIn(update_rules_for_trainers()),
                         test::RuleName());

using ShapeParam = std::tuple<const UpdateRule*, ParameterKind, Case>;
class RuleCpuShapes : public testing::TestWithParam<ShapeParam> {};

TEST_P(RuleCpuShapes, HaveTheBitsOfTheReferenceOnEveryTarget) {
  const auto& [rule, kind, c] = GetParam();
  const StepScalars scalars = second_scalars(*rule);
  UpdateState expected(*rule, c.n, c.offset, kind);
  fill_state(expected, 11);
  for (int step = 0; step < 2; ++step) rule->reference(expected.update(scalars));
  on_every_target(c.workers, [&](const KernelContext& context) {
    UpdateState state(*rule, c.n, c.offset, kind);
    fill_state(state, 11);
    for (int step = 0; step < 2; ++step) rule->cpu(context, state.update(scalars));
    expect_same_bits(state, expected);
  });
}

INSTANTIATE_TEST_SUITE_P(
    Shapes, RuleCpuShapes,
    testing::Combine(testing::ValuesIn(update_rules_for_trainers()),
                     testing::ValuesIn(test::kParameterKinds),
                     testing::Values(Case{1, 0, 1}, Case{31, 0, 1}, Case{32, 0, 1}, Case{33, 1, 1},
                                     Case{4096, 0, 1}, Case{1000, 3, 2}, Case{65536, 16, 2},
                                     Case{3 * 65536 + 77, 0, 3})),
    test::ShapeName());

TEST_P(RuleCpu, RangesAreTheWhole) {
  WorkerArena workers(2);
  KernelContext context;
  context.workers = &workers;
  constexpr std::int64_t kElements = 70001;
  constexpr std::int64_t kRange = 8 * kMomentBlock;
  for (const ParameterKind kind : test::kParameterKinds) {
    SCOPED_TRACE(static_cast<int>(kind));
    UpdateState expected(rule_, kElements, 0, kind), state(rule_, kElements, 0, kind);
    fill_state(expected, 14);
    fill_state(state, 14);
    rule_.cpu(context, expected.update(scalars_));
    ParameterUpdate update = state.update(scalars_);
    update.fetch_elements = kRange;
    for (std::int64_t end = kElements; end > 0;) {  // from the last to the first
      const std::int64_t begin = (end - 1) / kRange * kRange;
      rule_.cpu_range(update, begin, end);
      end = begin;
    }
    expect_same_bits(state, expected);
  }
}

TEST_P(RuleCpu, DecaysTheFirstElementsOnly) {
  WorkerArena workers(2);
  KernelContext context;
  context.workers = &workers;
  constexpr std::int64_t kElements = 70001;
  RuleOptions still = decaying_options(rule_);
  still.weight_decay = 0;
  UpdateState all(rule_, kElements, 0, ParameterKind::kBf16),
      none(rule_, kElements, 0, ParameterKind::kBf16);
  fill_state(all, 12);
  fill_state(none, 12);
  rule_.cpu(context, all.update(scalars_));
  rule_.cpu(context, none.update(still, scalars_));
  for (const std::int64_t decayed : {std::int64_t{-5}, std::int64_t{0}, std::int64_t{1001},
                                     std::int64_t{65600}, kElements, kElements + 3}) {
    SCOPED_TRACE(decayed);
    UpdateState state(rule_, kElements, 0, ParameterKind::kBf16);
    fill_state(state, 12);
    ParameterUpdate update = state.update(scalars_);
    update.decayed_elements = decayed;
    rule_.cpu(context, update);
    for (std::int64_t i = 0; i < kElements; ++i) {
      const auto at = static_cast<std::size_t>(i);
      UpdateState& expected = i < decayed ? all : none;
      ASSERT_EQ(std::bit_cast<std::uint32_t>(state.master.elements()[at]),
                std::bit_cast<std::uint32_t>(expected.master.elements()[at]))
          << i;
    }
  }
}

// The two forms of a master hold the same numbers, step after step.
TEST_P(RuleCpu, ASplitMasterIsTheWholeOne) {
  WorkerArena workers(2);
  KernelContext context;
  context.workers = &workers;
  UpdateState whole(rule_, 5000, 0, ParameterKind::kBf16),
      parts(rule_, 5000, 0, ParameterKind::kSplit);
  fill_state(whole, 13);
  fill_state(parts, 13);
  for (int step = 0; step < 5; ++step) {
    rule_.cpu(context, whole.update(scalars_));
    rule_.cpu(context, parts.update(scalars_));
    EXPECT_EQ(first_difference(parts.half_parameter, whole.half_parameter), -1);
    for (std::size_t s = 0; s < kMostSlots; ++s) {
      EXPECT_EQ(first_difference(parts.slots.at(s), whole.slots.at(s)), -1);
    }
    for (std::size_t i = 0; i < 5000; ++i) {
      const float exact = join({parts.half_parameter.elements()[i], parts.remainder.elements()[i]});
      ASSERT_EQ(std::bit_cast<std::uint32_t>(exact),
                std::bit_cast<std::uint32_t>(whole.master.elements()[i]));
    }
  }
}

// An update that the scalars say to skip leaves everything as it is, whatever the gradients are.
// Only parameters beside fp32 masters are written, since their memory may be new.
TEST_P(RuleCpu, ASkippedUpdateLeavesTheState) {
  constexpr std::int64_t kElements = 70001;
  WorkerArena workers(2);
  KernelContext context;
  context.workers = &workers;
  StepScalars scalars = scalars_;
  scalars.skips = 1;
  for (const ParameterKind kind : test::kParameterKinds) {
    SCOPED_TRACE(static_cast<int>(kind));
    UpdateState expected(rule_, kElements, 3, kind), state(rule_, kElements, 3, kind),
        scalar(rule_, kElements, 3, kind);
    fill_state(expected, 15);
    fill_state(state, 15);
    fill_state(scalar, 15);
    for (std::int64_t i = 0; i < kElements; ++i) {
      const auto at = static_cast<std::size_t>(i);
      expected.parameter.elements()[at] = expected.master.elements()[at];
      for (UpdateState* one : {&expected, &state, &scalar}) {
        one->gradient.elements()[at] = std::numeric_limits<float>::infinity();
      }
      for (UpdateState* one : {&state, &scalar}) {
        one->parameter.elements()[at] = expected.parameter.elements()[at];
        if (kind == ParameterKind::kFp16) one->fp16_parameter.elements()[at] = {};
        if (kind == ParameterKind::kF32) one->parameter.elements()[at] = 0;
        if (kind == ParameterKind::kBf16) one->half_parameter.elements()[at] = {};
      }
    }
    rule_.cpu(context, state.update(scalars));
    expect_same_bits(state, expected);
    rule_.reference(scalar.update(scalars));
    expect_same_bits(scalar, expected);
  }
}

// A bf16 gradient counts as the fp32 gradient that it stands for.
TEST_P(RuleCpu, TakesGradientsInBf16) {
  constexpr std::int64_t kElements = 5001;
  std::vector<Bf16> rounded;
  for (const ParameterKind kind : test::kParameterKinds) {
    SCOPED_TRACE(static_cast<int>(kind));
    UpdateState wide(rule_, kElements, 0, kind), scalar(rule_, kElements, 0, kind);
    const auto fill = [&](UpdateState& state) {
      fill_state(state, 14);
      rounded.clear();
      for (float& g : state.gradient.elements()) {
        rounded.push_back(to_bf16_nearest_even(g));
        g = to_float(rounded.back());
      }
    };
    const auto narrow_update = [&](UpdateState& state) {
      ParameterUpdate update = state.update(scalars_);
      update.gradient = view(std::span(rounded));
      return update;
    };
    fill(wide);
    rule_.reference(wide.update(scalars_));
    fill(scalar);
    rule_.reference(narrow_update(scalar));
    expect_same_bits(scalar, wide);
    on_every_target(2, [&](const KernelContext& context) {
      UpdateState state(rule_, kElements, 0, kind);
      fill(state);
      rule_.cpu(context, narrow_update(state));
      expect_same_bits(state, wide);
    });
  }
}

// Otherwise the tests above would not compare what they say they compare.
TEST(RuleCpuTargets, AreSeveralOnX86) {
  EXPECT_GE(usable_targets().size(), HWY_ARCH_X86 ? 2U : 1U);
}

// Each update leaves a half of the sum that is kept, and the parameter stays.
TEST_P(RuleCpu, KeepsDenormals) {
  RuleOptions options = standard_options(rule_);
  options.values.fill(0.5F);
  StepScalars scalars = scalars_;
  scalars.learning_rate = 0;
  scalars.of_rule = rule_.step_scalars(options, 2, 0);
  on_every_target(1, [&](const KernelContext& context) {
    UpdateState state(rule_, 64, 0, ParameterKind::kF32);
    for (float& slot : state.slots[0].elements()) slot = 1e-40F;
    for (float& p : state.master.elements()) p = 2e-42F;
    rule_.cpu(context, state.update(options, scalars));
    if (!rule_.slots.empty()) {
      EXPECT_NEAR(state.slots[0].elements()[5], 5e-41F, 1e-45F);
    }
    EXPECT_EQ(state.master.elements()[5], 2e-42F);
    EXPECT_EQ(state.parameter.elements()[5], 2e-42F);
  });
}

}  // namespace
}  // namespace terrace
