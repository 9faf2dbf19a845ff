#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <iterator>
#include <random>
#include <string>
#include <tuple>
#include <vector>

#include "memory/host/worker_arena.h"
#include "optim/rules/rules.h"
#include "optim/shared/update_kernels.h"
#include "optim/update_rules.h"
#include "tests/kernels/host_block.h"
#include "tests/optim/narrow_training.h"
#include "tests/optim/rule_state.h"

// The updates of the GPU, run on the host, must have the bits of the reference.
namespace terrace {
namespace {

using test::ParameterKind;
using test::second_scalars;
using test::UpdateState;

void run_shared(const UpdateRule& rule, const ParameterUpdate& update) {
  WorkerArena workers(2);
  test::HostLauncher launcher(workers, {});
  ASSERT_TRUE(with_type_of(rule, [&]<typename Rule>() { shared::update<Rule>(launcher, update); }));
}

struct Share {
  std::int64_t n, offset, decayed;
};

using SharedShapeParam = std::tuple<const UpdateRule*, ParameterKind, Share>;
class RuleSharedShapes : public testing::TestWithParam<SharedShapeParam> {};

TEST_P(RuleSharedShapes, HaveTheBitsOfTheReference) {
  const auto& [rule, kind, c] = GetParam();
  const StepScalars scalars = second_scalars(*rule);
  UpdateState expected(*rule, c.n, c.offset, kind);
  UpdateState state(*rule, c.n, c.offset, kind);
  fill_state(expected, 11);
  fill_state(state, 11);
  for (int step = 0; step < 2; ++step) {
    ParameterUpdate update = expected.update(scalars);
    update.decayed_elements = c.decayed;
    rule->reference(update);
    update = state.update(scalars);
    update.decayed_elements = c.decayed;
    run_shared(*rule, update);
  }
  expect_same_bits(state, expected);
}

INSTANTIATE_TEST_SUITE_P(
    Shapes, RuleSharedShapes,
    testing::Combine(testing::ValuesIn(update_rules_for_trainers()),
                     testing::ValuesIn(test::kParameterKinds),
                     testing::Values(Share{1, 0, 1}, Share{33, 1, 12}, Share{1000, 3, 5000},
                                     Share{5000, 0, 2503}, Share{65536, 16, -1})),
    test::ShapeName());

class RuleShared : public testing::TestWithParam<const UpdateRule*> {
 protected:
  const UpdateRule& rule_ = *GetParam();
  const StepScalars scalars_ = second_scalars(rule_);
};

INSTANTIATE_TEST_SUITE_P(Rules, RuleShared, testing::ValuesIn(update_rules_for_trainers()),
                         test::RuleName());

// Makes two updates, each by `run`, with gradients rounded to bf16.
template <typename Run>
void update_with_half_gradients(UpdateState& state, const Run& run) {
  const StepScalars scalars = second_scalars(state.rule);
  fill_state(state, 14);
  test::OffsetArray<Bf16> rounded(std::ssize(state.gradient.elements()), 3);
  for (std::size_t i = 0; i < rounded.elements().size(); ++i) {
    rounded.elements()[i] = to_bf16_nearest_even(state.gradient.elements()[i]);
  }
  for (int step = 0; step < 2; ++step) {
    ParameterUpdate update = state.update(scalars);
    update.gradient = view(rounded.elements());
    run(update);
  }
}

TEST_P(RuleShared, TakesGradientsInBf16) {
  for (const ParameterKind kind : test::kParameterKinds) {
    for (const std::int64_t offset : {0, 3}) {
      UpdateState expected(rule_, 5001, offset, kind);
      UpdateState state(rule_, 5001, offset, kind);
      update_with_half_gradients(expected, rule_.reference);
      update_with_half_gradients(
          state, [this](const ParameterUpdate& update) { run_shared(rule_, update); });
      expect_same_bits(state, expected);
    }
  }
}

TEST_P(RuleShared, ASkippedUpdateWritesParametersBesideMasters) {
  StepScalars scalars = scalars_;
  scalars.skips = 1;
  for (const ParameterKind kind : test::kParameterKinds) {
    SCOPED_TRACE(static_cast<int>(kind));
    UpdateState expected(rule_, 5001, 3, kind);
    UpdateState state(rule_, 5001, 3, kind);
    for (UpdateState* one : {&expected, &state}) {
      fill_state(*one, 16);
      for (Fp16& parameter : one->fp16_parameter.elements()) parameter = {};
    }
    rule_.reference(expected.update(scalars));
    run_shared(rule_, state.update(scalars));
    expect_same_bits(state, expected);
  }
}

class SharedNarrowSlots : public testing::TestWithParam<std::tuple<const UpdateRule*, test::Form>> {
 protected:
  const UpdateRule& rule_ = *std::get<0>(GetParam());
  const test::Form& form_ = std::get<1>(GetParam());
};

TEST_P(SharedNarrowSlots, HaveTheBitsOfTheReference) {
  constexpr std::int64_t kElements = 5 * 4096;
  test::Training expected(rule_, form_, kElements);
  test::Training training(rule_, form_, kElements);
  for (std::uint32_t t = 1; t <= 4; ++t) {
    rule_.reference(expected.step(t));
    run_shared(rule_, training.step(t));
  }
  EXPECT_EQ(training.parameter, expected.parameter);
  EXPECT_EQ(training.state, expected.state);
}

TEST_P(SharedNarrowSlots, HaveThoseBitsWithGradientsInBf16) {
  constexpr std::int64_t kElements = 5 * 4096;
  test::Training expected(rule_, form_, kElements);
  test::Training training(rule_, form_, kElements);
  std::vector<Bf16> rounded(kElements);
  for (std::uint32_t t = 1; t <= 2; ++t) {
    ParameterUpdate update = expected.step(t);
    for (std::size_t i = 0; i < rounded.size(); ++i) {
      rounded[i] = to_bf16_nearest_even(expected.gradient[i]);
    }
    update.gradient = view(std::span(rounded));
    rule_.reference(update);
    update = training.step(t);
    update.gradient = view(std::span(rounded));
    run_shared(rule_, update);
  }
  EXPECT_EQ(training.parameter, expected.parameter);
  EXPECT_EQ(training.state, expected.state);
}

// At odd addresses elements are loaded and stored one by one.
TEST_P(SharedNarrowSlots, HaveThoseBitsWhereverAGradientBegins) {
  constexpr std::int64_t kElements = 2 * 4096;
  test::Training expected(rule_, form_, kElements);
  test::Training training(rule_, form_, kElements);
  rule_.reference(expected.step(1));
  ParameterUpdate update = training.step(1);
  test::OffsetArray<float> gradient(kElements, 1);
  std::ranges::copy(training.gradient, gradient.elements().begin());
  update.gradient = view(gradient.elements());
  run_shared(rule_, update);
  EXPECT_EQ(training.parameter, expected.parameter);
  EXPECT_EQ(training.state, expected.state);
}

TEST_P(SharedNarrowSlots, HaveThoseBitsAtTheEndsOfTheRange) {
  constexpr std::int64_t kElements = 2 * 4096;
  test::Training expected(rule_, form_, kElements);
  test::Training training(rule_, form_, kElements);
  for (std::uint32_t t = 1; t <= 3; ++t) {
    rule_.reference(step_to_the_ends_of_the_range(expected, t));
    run_shared(rule_, step_to_the_ends_of_the_range(training, t));
  }
  EXPECT_EQ(training.parameter, expected.parameter);
  EXPECT_EQ(training.state, expected.state);
}

TEST_P(SharedNarrowSlots, EveryCodeIsReadAsTheReferenceReadsIt) {
  if (form_.format.slot_form != SlotForm::kInt8) return;
  test::Training expected(rule_, form_, 4096);
  test::Training training(rule_, form_, 4096);
  rule_.reference(step_from_every_code(expected));
  run_shared(rule_, step_from_every_code(training));
  EXPECT_EQ(training.parameter, expected.parameter);
  EXPECT_EQ(training.state, expected.state);
}

template <std::uint32_t Top>
void expect_same_codes(std::uint32_t exponent, float size, std::uint32_t random) {
  const auto byte = static_cast<std::uint8_t>(exponent);
  EXPECT_EQ(shared::SizeEncoder<Top>(byte).code(size, random), encode_size<Top>(size, byte, random))
      << "exponent " << exponent << std::hexfloat << " size " << size << " random " << random;
}

// Checks sizes down to far below the least normal number of a block, and ties between the steps
// there.
template <std::uint32_t Top>
void expect_same_codes_of_block(std::uint32_t exponent, std::mt19937& random) {
  const auto draw = [&](std::uint32_t end) { return static_cast<std::uint32_t>(random() % end); };
  const float half_step = std::ldexp(1.0F, static_cast<int>(exponent - Top + 1) - 127 - 24);
  for (int i = 0; i < 2000; ++i) {
    const std::uint32_t field = exponent - draw(std::min(exponent, 40U));
    const std::uint32_t dropped = i % 5 == 0 ? 0x7ffffU : draw(0x80000U);
    expect_same_codes<Top>(exponent, std::bit_cast<float>(field << 23 | draw(1U << 23)), dropped);
    expect_same_codes<Top>(exponent, static_cast<float>(2 * draw(1U << 23) + 1) * half_step,
                           dropped);
  }
}

TEST(SharedCodes, SizesGetTheCodesOfTheReference) {
  std::mt19937 random(5);
  for (std::uint32_t exponent = kLeastExponent; exponent <= kMostExponent; ++exponent) {
    expect_same_codes_of_block<kTopExponents[0]>(exponent, random);
    expect_same_codes_of_block<kTopExponents[1]>(exponent, random);
  }
  const auto nan = std::bit_cast<float>(0x7fffffffU);
  for (const float size : {0.0F, HUGE_VALF, nan}) {
    expect_same_codes<kTopExponents[0]>(kMostExponent, size, 0x7ffffU);
    expect_same_codes<kTopExponents[1]>(kMostExponent, size, 0x7ffffU);
  }
  expect_same_codes<kTopExponents[0]>(0, 0.0F, 0x7ffffU);
  expect_same_codes<kTopExponents[1]>(0, 0.0F, 0x7ffffU);
}

TEST_P(SharedNarrowSlots, AreLeftByASkippedUpdate) {
  constexpr std::int64_t kElements = 2 * 4096;
  test::Training training(rule_, form_, kElements);
  run_shared(rule_, training.step(1));
  const test::Training expected = training;
  ParameterUpdate update = training.step(2);
  StepScalars scalars = *update.scalars;
  scalars.skips = 1;
  update.scalars = &scalars;
  run_shared(rule_, update);
  EXPECT_EQ(training.parameter, expected.parameter);
  EXPECT_EQ(training.state, expected.state);
}

INSTANTIATE_TEST_SUITE_P(RulesAndForms, SharedNarrowSlots,
                         testing::Combine(testing::ValuesIn(update_rules_for_trainers()),
                                          testing::ValuesIn(test::kForms)),
                         test::RuleAndFormName());

}  // namespace
}  // namespace terrace
