#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <tuple>
#include <vector>

#include "memory/host/worker_arena.h"
#include "optim/adamw.h"
#include "tests/kernels/every_target.h"
#include "tests/optim/adamw_state.h"

namespace terrace {
namespace {

using test::AdamWState;
using test::kAdamWOptions;
using test::kAdamWScalars;
using test::on_every_target;
using test::ParameterKind;
using test::usable_targets;

struct Case {
  std::int64_t n, offset;
  int workers;
};

class AdamWCpu : public testing::TestWithParam<std::tuple<ParameterKind, Case>> {};

TEST_P(AdamWCpu, HasTheBitsOfTheReferenceOnEveryTarget) {
  const auto& [kind, c] = GetParam();
  AdamWState expected(c.n, c.offset, kind);
  fill_state(expected, 11);
  for (int step = 0; step < 2; ++step)
    adamw_reference(expected.update(kAdamWOptions, kAdamWScalars));
  on_every_target(c.workers, [&](const KernelContext& context) {
    AdamWState state(c.n, c.offset, kind);
    fill_state(state, 11);
    for (int step = 0; step < 2; ++step)
      adamw_cpu(context, state.update(kAdamWOptions, kAdamWScalars));
    expect_same_bits(state, expected);
  });
}

INSTANTIATE_TEST_SUITE_P(
    Shapes, AdamWCpu,
    testing::Combine(testing::Values(ParameterKind::kBf16, ParameterKind::kFp16,
                                     ParameterKind::kF32, ParameterKind::kMaster,
                                     ParameterKind::kSplit),
                     testing::Values(Case{1, 0, 1}, Case{31, 0, 1}, Case{32, 0, 1}, Case{33, 1, 1},
                                     Case{4096, 0, 1}, Case{1000, 3, 2}, Case{65536, 16, 2},
                                     Case{3 * 65536 + 77, 0, 3})));

TEST(AdamWCpu, RangesAreTheWhole) {
  WorkerArena workers(2);
  KernelContext context;
  context.workers = &workers;
  constexpr std::int64_t kElements = 70001;
  constexpr std::int64_t kRange = 8 * kMomentBlock;
  for (const ParameterKind kind : {ParameterKind::kBf16, ParameterKind::kFp16, ParameterKind::kF32,
                                   ParameterKind::kMaster, ParameterKind::kSplit}) {
    SCOPED_TRACE(static_cast<int>(kind));
    AdamWState expected(kElements, 0, kind), state(kElements, 0, kind);
    fill_state(expected, 14);
    fill_state(state, 14);
    adamw_cpu(context, expected.update(kAdamWOptions, kAdamWScalars));
    ParameterUpdate update = state.update(kAdamWOptions, kAdamWScalars);
    update.fetch_elements = kRange;
    for (std::int64_t end = kElements; end > 0;) {  // from the last to the first
      const std::int64_t begin = (end - 1) / kRange * kRange;
      adamw_cpu_range(update, begin, end);
      end = begin;
    }
    expect_same_bits(state, expected);
  }
}

TEST(AdamWCpu, DecaysTheFirstElementsOnly) {
  WorkerArena workers(2);
  KernelContext context;
  context.workers = &workers;
  constexpr std::int64_t kElements = 70001;
  AdamWOptions still = kAdamWOptions;
  still.weight_decay = 0;
  AdamWState all(kElements, 0, ParameterKind::kBf16), none(kElements, 0, ParameterKind::kBf16);
  fill_state(all, 12);
  fill_state(none, 12);
  adamw_cpu(context, all.update(kAdamWOptions, kAdamWScalars));
  adamw_cpu(context, none.update(still, kAdamWScalars));
  for (const std::int64_t decayed : {std::int64_t{-5}, std::int64_t{0}, std::int64_t{1001},
                                     std::int64_t{65600}, kElements, kElements + 3}) {
    SCOPED_TRACE(decayed);
    AdamWState state(kElements, 0, ParameterKind::kBf16);
    fill_state(state, 12);
    ParameterUpdate update = state.update(kAdamWOptions, kAdamWScalars);
    update.decayed_elements = decayed;
    adamw_cpu(context, update);
    for (std::int64_t i = 0; i < kElements; ++i) {
      const auto at = static_cast<std::size_t>(i);
      AdamWState& expected = i < decayed ? all : none;
      ASSERT_EQ(std::bit_cast<std::uint32_t>(state.master.elements()[at]),
                std::bit_cast<std::uint32_t>(expected.master.elements()[at]))
          << i;
    }
  }
}

// The two forms of a master hold the same numbers, step after step.
TEST(AdamWCpu, ASplitMasterIsTheWholeOne) {
  WorkerArena workers(2);
  KernelContext context;
  context.workers = &workers;
  AdamWState whole(5000, 0, ParameterKind::kBf16), parts(5000, 0, ParameterKind::kSplit);
  fill_state(whole, 13);
  fill_state(parts, 13);
  for (int step = 0; step < 5; ++step) {
    adamw_cpu(context, whole.update(kAdamWOptions, kAdamWScalars));
    adamw_cpu(context, parts.update(kAdamWOptions, kAdamWScalars));
    EXPECT_EQ(first_difference(parts.half_parameter, whole.half_parameter), -1);
    EXPECT_EQ(first_difference(parts.moment1, whole.moment1), -1);
    EXPECT_EQ(first_difference(parts.moment2, whole.moment2), -1);
    for (std::size_t i = 0; i < 5000; ++i) {
      const float exact = join({parts.half_parameter.elements()[i], parts.remainder.elements()[i]});
      ASSERT_EQ(std::bit_cast<std::uint32_t>(exact),
                std::bit_cast<std::uint32_t>(whole.master.elements()[i]));
    }
  }
}

// What the scalars say to skip leaves everything, whatever the gradients are; only parameters
// beside fp32 masters are written, since theirs may be new memory.
TEST(AdamWCpu, ASkippedUpdateLeavesTheState) {
  constexpr std::int64_t kElements = 70001;
  WorkerArena workers(2);
  KernelContext context;
  context.workers = &workers;
  StepScalars scalars = kAdamWScalars;
  scalars.skips = 1;
  for (const ParameterKind kind : {ParameterKind::kBf16, ParameterKind::kFp16, ParameterKind::kF32,
                                   ParameterKind::kMaster, ParameterKind::kSplit}) {
    SCOPED_TRACE(static_cast<int>(kind));
    AdamWState expected(kElements, 3, kind), state(kElements, 3, kind), scalar(kElements, 3, kind);
    fill_state(expected, 15);
    fill_state(state, 15);
    fill_state(scalar, 15);
    for (std::int64_t i = 0; i < kElements; ++i) {
      const auto at = static_cast<std::size_t>(i);
      expected.parameter.elements()[at] = expected.master.elements()[at];
      for (AdamWState* one : {&expected, &state, &scalar}) {
        one->gradient.elements()[at] = std::numeric_limits<float>::infinity();
      }
      for (AdamWState* one : {&state, &scalar}) {
        one->parameter.elements()[at] = expected.parameter.elements()[at];
        if (kind == ParameterKind::kFp16) one->fp16_parameter.elements()[at] = {};
        if (kind == ParameterKind::kF32) one->parameter.elements()[at] = 0;
        if (kind == ParameterKind::kBf16) one->half_parameter.elements()[at] = {};
      }
    }
    adamw_cpu(context, state.update(kAdamWOptions, scalars));
    expect_same_bits(state, expected);
    adamw_reference(scalar.update(kAdamWOptions, scalars));
    expect_same_bits(scalar, expected);
  }
}

// A bf16 gradient is the fp32 one that it stands for.
TEST(AdamWCpu, TakesGradientsInBf16) {
  WorkerArena workers(2);
  KernelContext context;
  context.workers = &workers;
  constexpr std::int64_t kElements = 5001;
  AdamWState wide(kElements, 0, ParameterKind::kSplit), half(kElements, 0, ParameterKind::kSplit);
  AdamWState scalar(kElements, 0, ParameterKind::kSplit);
  fill_state(wide, 14);
  fill_state(half, 14);
  fill_state(scalar, 14);
  std::vector<Bf16> rounded;
  for (float& g : wide.gradient.elements()) {
    rounded.push_back(to_bf16_nearest_even(g));
    g = to_float(rounded.back());
  }
  ParameterUpdate update = half.update(kAdamWOptions, kAdamWScalars);
  update.gradient = view(std::span(rounded));
  ParameterUpdate reference = scalar.update(kAdamWOptions, kAdamWScalars);
  reference.gradient = update.gradient;
  adamw_cpu(context, wide.update(kAdamWOptions, kAdamWScalars));
  adamw_cpu(context, update);
  adamw_reference(reference);
  for (AdamWState* state : {&half, &scalar}) {
    EXPECT_EQ(first_difference(state->half_parameter, wide.half_parameter), -1);
    EXPECT_EQ(first_difference(state->remainder, wide.remainder), -1);
    EXPECT_EQ(first_difference(state->moment1, wide.moment1), -1);
    EXPECT_EQ(first_difference(state->moment2, wide.moment2), -1);
  }
}

// Otherwise the test above would not compare what it says it compares.
TEST(AdamWCpuTargets, AreSeveralOnX86) {
  EXPECT_GE(usable_targets().size(), HWY_ARCH_X86 ? 2U : 1U);
}

TEST(AdamWCpu, KeepsDenormals) {
  on_every_target(1, [&](const KernelContext& context) {
    AdamWState state(64, 0, ParameterKind::kF32);
    for (float& m : state.moment1.elements()) m = 1e-40F;
    for (float& p : state.master.elements()) p = 2e-42F;
    const StepScalars scalars = {.learning_rate = 0.0F};
    adamw_cpu(context, state.update({.beta1 = 0.5F}, scalars));
    EXPECT_EQ(state.moment1.elements()[5], std::fma(0.5F, -1e-40F, 1e-40F));
    EXPECT_NE(state.moment1.elements()[5], 0.0F);
    EXPECT_EQ(state.master.elements()[5], 2e-42F);
    EXPECT_EQ(state.parameter.elements()[5], 2e-42F);
  });
}

}  // namespace
}  // namespace terrace
