#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <iterator>
#include <random>
#include <tuple>
#include <vector>

#include "memory/host/worker_arena.h"
#include "optim/shared/adamw_kernels.h"
#include "tests/kernels/host_block.h"
#include "tests/optim/adamw_state.h"
#include "tests/optim/narrow_training.h"

// The updates of the GPU, run on the host: the bits of the reference.
namespace terrace {
namespace {

using test::AdamWState;
using test::kAdamWOptions;
using test::kAdamWScalars;
using test::ParameterKind;

void run_shared(const ParameterUpdate& update) {
  WorkerArena workers(2);
  test::HostLauncher launcher(workers, {});
  shared::adamw(launcher, update);
}

struct Share {
  std::int64_t n, offset, decayed;
};

class AdamWSharedShapes : public testing::TestWithParam<std::tuple<ParameterKind, Share>> {};

TEST_P(AdamWSharedShapes, HasTheBitsOfTheReference) {
  const auto& [kind, c] = GetParam();
  AdamWState expected(c.n, c.offset, kind);
  AdamWState state(c.n, c.offset, kind);
  fill_state(expected, 11);
  fill_state(state, 11);
  for (int step = 0; step < 2; ++step) {
    ParameterUpdate update = expected.update(kAdamWOptions, kAdamWScalars);
    update.decayed_elements = c.decayed;
    adamw_reference(update);
    update = state.update(kAdamWOptions, kAdamWScalars);
    update.decayed_elements = c.decayed;
    run_shared(update);
  }
  expect_same_bits(state, expected);
}

INSTANTIATE_TEST_SUITE_P(
    Shapes, AdamWSharedShapes,
    testing::Combine(testing::Values(ParameterKind::kBf16, ParameterKind::kFp16,
                                     ParameterKind::kF32, ParameterKind::kMaster,
                                     ParameterKind::kSplit),
                     testing::Values(Share{1, 0, 1}, Share{33, 1, 12}, Share{1000, 3, 5000},
                                     Share{5000, 0, 2503}, Share{65536, 16, -1})));

// Two updates, each by `run`, with gradients rounded to bf16.
template <typename Run>
void update_with_half_gradients(AdamWState& state, const Run& run) {
  fill_state(state, 14);
  test::OffsetArray<Bf16> rounded(std::ssize(state.gradient.elements()), 3);
  for (std::size_t i = 0; i < rounded.elements().size(); ++i) {
    rounded.elements()[i] = to_bf16_nearest_even(state.gradient.elements()[i]);
  }
  for (int step = 0; step < 2; ++step) {
    ParameterUpdate update = state.update(kAdamWOptions, kAdamWScalars);
    update.gradient = view(rounded.elements());
    run(update);
  }
}

TEST(AdamWShared, TakesGradientsInBf16) {
  for (const std::int64_t offset : {0, 3}) {
    AdamWState expected(5001, offset, ParameterKind::kSplit);
    AdamWState state(5001, offset, ParameterKind::kSplit);
    update_with_half_gradients(expected, adamw_reference);
    update_with_half_gradients(state, run_shared);
    EXPECT_EQ(first_difference(state.half_parameter, expected.half_parameter), -1);
    EXPECT_EQ(first_difference(state.remainder, expected.remainder), -1);
    EXPECT_EQ(first_difference(state.moment1, expected.moment1), -1);
    EXPECT_EQ(first_difference(state.moment2, expected.moment2), -1);
  }
}

TEST(AdamWShared, ASkippedUpdateWritesParametersBesideMasters) {
  StepScalars scalars = kAdamWScalars;
  scalars.skips = 1;
  for (const ParameterKind kind : {ParameterKind::kBf16, ParameterKind::kFp16, ParameterKind::kF32,
                                   ParameterKind::kMaster, ParameterKind::kSplit}) {
    SCOPED_TRACE(static_cast<int>(kind));
    AdamWState expected(5001, 3, kind);
    AdamWState state(5001, 3, kind);
    for (AdamWState* one : {&expected, &state}) {
      fill_state(*one, 16);
      for (Fp16& parameter : one->fp16_parameter.elements()) parameter = {};
    }
    adamw_reference(expected.update(kAdamWOptions, scalars));
    run_shared(state.update(kAdamWOptions, scalars));
    expect_same_bits(state, expected);
  }
}

class AdamWSharedMoments : public testing::TestWithParam<test::Form> {};

TEST_P(AdamWSharedMoments, HaveTheBitsOfTheReference) {
  constexpr std::int64_t kElements = 5 * 4096;
  test::Training expected(GetParam(), kElements);
  test::Training training(GetParam(), kElements);
  for (std::uint32_t t = 1; t <= 4; ++t) {
    adamw_reference(expected.step(t));
    run_shared(training.step(t));
  }
  EXPECT_EQ(training.parameter, expected.parameter);
  EXPECT_EQ(training.state, expected.state);
}

TEST_P(AdamWSharedMoments, HaveThoseBitsWithGradientsInBf16) {
  constexpr std::int64_t kElements = 5 * 4096;
  test::Training expected(GetParam(), kElements);
  test::Training training(GetParam(), kElements);
  std::vector<Bf16> rounded(kElements);
  for (std::uint32_t t = 1; t <= 2; ++t) {
    ParameterUpdate update = expected.step(t);
    for (std::size_t i = 0; i < rounded.size(); ++i) {
      rounded[i] = to_bf16_nearest_even(expected.gradient[i]);
    }
    update.gradient = view(std::span(rounded));
    adamw_reference(update);
    update = training.step(t);
    update.gradient = view(std::span(rounded));
    run_shared(update);
  }
  EXPECT_EQ(training.parameter, expected.parameter);
  EXPECT_EQ(training.state, expected.state);
}

// Odd addresses: elements are loaded and stored one by one.
TEST_P(AdamWSharedMoments, HaveThoseBitsWhereverAGradientBegins) {
  constexpr std::int64_t kElements = 2 * 4096;
  test::Training expected(GetParam(), kElements);
  test::Training training(GetParam(), kElements);
  adamw_reference(expected.step(1));
  ParameterUpdate update = training.step(1);
  test::OffsetArray<float> gradient(kElements, 1);
  std::ranges::copy(training.gradient, gradient.elements().begin());
  update.gradient = view(gradient.elements());
  run_shared(update);
  EXPECT_EQ(training.parameter, expected.parameter);
  EXPECT_EQ(training.state, expected.state);
}

TEST_P(AdamWSharedMoments, HaveThoseBitsAtTheEndsOfTheRange) {
  constexpr std::int64_t kElements = 2 * 4096;
  test::Training expected(GetParam(), kElements);
  test::Training training(GetParam(), kElements);
  for (std::uint32_t t = 1; t <= 3; ++t) {
    adamw_reference(step_to_the_ends_of_the_range(expected, t));
    run_shared(step_to_the_ends_of_the_range(training, t));
  }
  EXPECT_EQ(training.parameter, expected.parameter);
  EXPECT_EQ(training.state, expected.state);
}

TEST(AdamWSharedMoments, EveryCodeIsReadAsTheReferenceReadsIt) {
  for (const test::Form& form : test::kForms) {
    if (form.format.slot_form != SlotForm::kInt8) continue;
    SCOPED_TRACE(form.name);
    test::Training expected(form, 4096);
    test::Training training(form, 4096);
    adamw_reference(step_from_every_code(expected));
    run_shared(step_from_every_code(training));
    EXPECT_EQ(training.parameter, expected.parameter);
    EXPECT_EQ(training.state, expected.state);
  }
}

template <std::uint32_t Top>
void expect_same_codes(std::uint32_t exponent, float size, std::uint32_t random) {
  const auto byte = static_cast<std::uint8_t>(exponent);
  EXPECT_EQ(shared::SizeEncoder<Top>(byte).code(size, random), encode_size<Top>(size, byte, random))
      << "exponent " << exponent << std::hexfloat << " size " << size << " random " << random;
}

// Sizes down to far below the least normal number of a block, and ties between the steps there.
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

TEST(AdamWSharedMoments, SizesGetTheCodesOfTheReference) {
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

TEST_P(AdamWSharedMoments, AreLeftByASkippedUpdate) {
  constexpr std::int64_t kElements = 2 * 4096;
  test::Training training(GetParam(), kElements);
  run_shared(training.step(1));
  const test::Training expected = training;
  ParameterUpdate update = training.step(2);
  StepScalars scalars = *update.scalars;
  scalars.skips = 1;
  update.scalars = &scalars;
  run_shared(update);
  EXPECT_EQ(training.parameter, expected.parameter);
  EXPECT_EQ(training.state, expected.state);
}

INSTANTIATE_TEST_SUITE_P(Forms, AdamWSharedMoments, testing::ValuesIn(test::kForms),
                         [](const auto& form) { return form.param.name; });

}  // namespace
}  // namespace terrace
