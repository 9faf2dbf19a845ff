#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <random>
#include <string>
#include <tuple>
#include <vector>

#include "memory/host/worker_arena.h"
#include "optim/rules/rules.h"
#include "optim/update_rules.h"
#include "optim/update_state.h"
#include "tests/kernels/every_target.h"
#include "tests/optim/narrow_training.h"

// Tests of updates by every rule with slots in 16 and 8 bits.
namespace terrace {
namespace {

using test::Form;
using test::kForms;
using test::on_every_target;
using test::Training;

class NarrowSlots : public testing::TestWithParam<std::tuple<const UpdateRule*, Form>> {
 protected:
  const UpdateRule& rule_ = *std::get<0>(GetParam());
  const Form& form_ = std::get<1>(GetParam());
};

TEST_P(NarrowSlots, HaveTheBitsOfTheReferenceOnEveryTarget) {
  constexpr std::int64_t kElements = 5 * 4096 + 65536;
  constexpr std::uint32_t kSteps = 4;
  Training expected(rule_, form_, kElements);
  for (std::uint32_t t = 1; t <= kSteps; ++t) rule_.reference(expected.step(t));
  for (const int threads : {1, 3}) {
    on_every_target(threads, [&](const KernelContext& context) {
      Training training(rule_, form_, kElements);
      for (std::uint32_t t = 1; t <= kSteps; ++t) rule_.cpu(context, training.step(t));
      EXPECT_EQ(training.parameter, expected.parameter);
      EXPECT_EQ(training.state, expected.state);
    });
  }
}

TEST_P(NarrowSlots, HaveThoseBitsWithGradientsInBf16) {
  constexpr std::int64_t kElements = 5 * 4096;
  std::vector<Bf16> rounded(kElements);
  const auto narrow_step = [&](Training& training, std::uint32_t number) {
    ParameterUpdate update = training.step(number);
    std::ranges::transform(training.gradient, rounded.begin(), to_bf16_nearest_even);
    update.gradient = view(std::span(rounded));
    return update;
  };
  Training expected(rule_, form_, kElements);
  for (std::uint32_t t = 1; t <= 2; ++t) rule_.reference(narrow_step(expected, t));
  on_every_target(2, [&](const KernelContext& context) {
    Training training(rule_, form_, kElements);
    for (std::uint32_t t = 1; t <= 2; ++t) rule_.cpu(context, narrow_step(training, t));
    EXPECT_EQ(training.parameter, expected.parameter);
    EXPECT_EQ(training.state, expected.state);
  });
}

TEST_P(NarrowSlots, AreLeftByASkippedUpdate) {
  WorkerArena workers(2);
  KernelContext context;
  context.workers = &workers;
  Training training(rule_, form_, 2 * 4096);
  rule_.cpu(context, training.step(1));
  const Training expected = training;
  ParameterUpdate update = training.step(2);
  training.scalars.skips = 1;
  rule_.cpu(context, update);
  EXPECT_EQ(training.parameter, expected.parameter);
  EXPECT_EQ(training.state, expected.state);
}

TEST_P(NarrowSlots, HaveTheBitsOfTheReferenceAtTheEndsOfTheRange) {
  constexpr std::int64_t kElements = 2 * 4096;
  Training expected(rule_, form_, kElements);
  for (std::uint32_t t = 1; t <= 3; ++t) {
    rule_.reference(step_to_the_ends_of_the_range(expected, t));
  }
  on_every_target(1, [&](const KernelContext& context) {
    Training training(rule_, form_, kElements);
    for (std::uint32_t t = 1; t <= 3; ++t) {
      rule_.cpu(context, step_to_the_ends_of_the_range(training, t));
    }
    EXPECT_EQ(training.parameter, expected.parameter);
    EXPECT_EQ(training.state, expected.state);
  });
}

TEST_P(NarrowSlots, EveryCodeIsReadAsTheReferenceReadsIt) {
  if (form_.format.slot_form != SlotForm::kInt8) return;
  Training expected(rule_, form_, 4096);
  rule_.reference(step_from_every_code(expected));
  on_every_target(1, [&](const KernelContext& context) {
    Training training(rule_, form_, 4096);
    rule_.cpu(context, step_from_every_code(training));
    EXPECT_EQ(training.parameter, expected.parameter);
    EXPECT_EQ(training.state, expected.state);
  });
}

// Chunks do not change bits: the same elements in two calls.
TEST_P(NarrowSlots, DoNotDependOnWhereARangeBegins) {
  constexpr std::int64_t kElements = 3 * 4096;
  WorkerArena workers(2);
  KernelContext context;
  context.workers = &workers;
  Training whole(rule_, form_, kElements), first(rule_, form_, 4096),
      second(rule_, form_, 2 * 4096);
  for (std::uint32_t t = 1; t <= 3; ++t) {
    const ParameterUpdate update = whole.step(t);
    ParameterUpdate front = first.step(t);
    ParameterUpdate back = second.step(t);
    front.decayed_elements = update.decayed_elements;
    back.decayed_elements = update.decayed_elements - 4096;
    back.rounding.first_element += 4096;
    std::copy_n(whole.gradient.begin(), 4096, first.gradient.begin());
    std::copy_n(whole.gradient.begin() + 4096, 2 * 4096, second.gradient.begin());
    rule_.cpu(context, update);
    rule_.cpu(context, front);
    rule_.cpu(context, back);
  }
  std::vector<std::byte> joined = first.parameter;
  joined.insert(joined.end(), second.parameter.begin(), second.parameter.end());
  EXPECT_EQ(joined, whole.parameter);
}

TEST_P(NarrowSlots, OtherSeedsAndStepsRoundOtherwise) {
  if (rule_.slots.empty()) return;  // nothing is rounded
  WorkerArena workers(1);
  KernelContext context;
  context.workers = &workers;
  Training plain(rule_, form_, 4096), seed(rule_, form_, 4096), stream(rule_, form_, 4096);
  rule_.cpu(context, plain.step(1));
  ParameterUpdate update = seed.step(1);
  ++update.rounding.seed;
  rule_.cpu(context, update);
  update = stream.step(1);
  ++update.rounding.stream;
  rule_.cpu(context, update);
  EXPECT_NE(seed.state, plain.state);
  EXPECT_NE(stream.state, plain.state);
}

INSTANTIATE_TEST_SUITE_P(RulesAndForms, NarrowSlots,
                         testing::Combine(testing::ValuesIn(update_rules_for_trainers()),
                                          testing::ValuesIn(kForms)),
                         test::RuleAndFormName());

class AdamWMoments : public testing::TestWithParam<Form> {};

// With beta2 = 0.999 a step changes a second moment by a thousandth at the most: less than half a
// step of bf16 or of a code, so that rounding to nearest would leave it where it is for ever. The
// mean of many elements must follow the exact one. It is a mean of 4096 elements, each within a
// step (1/16 of its size for codes) of its expectation; ten standard deviations are 10/64 of that.
TEST_P(AdamWMoments, FollowSmallChanges) {
  const UpdateRule& rule = update_rule<rules::AdamW>();
  WorkerArena workers(2);
  KernelContext context;
  context.workers = &workers;
  Training training(rule, GetParam(), 4096);
  StepScalars scalars = {.of_rule = {1, 1}};
  ParameterUpdate update = training.step(1);
  update.options.values.at(1) = 0.999F;
  update.scalars = &scalars;
  float exact = 0;
  for (std::uint32_t t = 1; t <= 600; ++t) {
    scalars.step = t;
    const float g = t <= 100 ? 1.0F : 0.25F;
    std::ranges::fill(training.gradient, g);
    exact = std::fma(1.0F - 0.999F, g * g - exact, exact);
    rule.cpu(context, update);
  }
  double mean = 0;
  for (std::int64_t i = 0; i < 4096; ++i) {
    const auto at = static_cast<std::size_t>(i);
    mean += update.slots[1].dtype == DType::kBF16
                ? to_float(update.slots[1].as<Bf16>()[i])
                : decode_moment2(static_cast<std::uint8_t>(update.slots[1].as<std::byte>()[at]),
                                 static_cast<std::uint8_t>(
                                     update.exponents[1].as<std::byte>()[at / kMomentBlock]));
  }
  EXPECT_NEAR(mean / 4096, exact, exact * 10.0 / 64 / 16);
}

INSTANTIATE_TEST_SUITE_P(Forms, AdamWMoments, testing::ValuesIn(kForms),
                         [](const auto& instance) { return std::string(instance.param.name); });

TEST(NarrowSlotsDeathTest, RefusePartsOfBlocks) {
  const UpdateRule& rule = *update_rules().front();
  Training training(rule, kForms[1], 4096);
  ParameterUpdate update = training.step(1);
  update.rounding.first_element = 128;
  EXPECT_DEATH(rule.reference(update), "128 and 0");
}

TEST(StateFormat, BytesPerParameter) {
  constexpr std::int64_t kElements = 1024 * 4096;
  const auto bytes = [](MasterForm master, SlotForm slots, std::size_t count = 2) {
    return static_cast<double>(StateFormat{master, slots, count}.bytes(kElements)) / kElements;
  };
  EXPECT_EQ(bytes(MasterForm::kFp32, SlotForm::kFp32), 12);
  EXPECT_EQ(bytes(MasterForm::kSplit, SlotForm::kFp32), 10);
  EXPECT_EQ(bytes(MasterForm::kParameter, SlotForm::kFp32), 8);
  EXPECT_EQ(bytes(MasterForm::kSplit, SlotForm::kBf16), 6);
  EXPECT_EQ(bytes(MasterForm::kSplit, SlotForm::kInt8), 4 + 2.0 / 256);
  EXPECT_EQ(bytes(MasterForm::kSplit, SlotForm::kFp32, 1), 6);
  EXPECT_EQ(bytes(MasterForm::kSplit, SlotForm::kInt8, 1), 3 + 1.0 / 256);
}

}  // namespace
}  // namespace terrace
