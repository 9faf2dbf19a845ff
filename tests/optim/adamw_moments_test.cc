#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <random>
#include <vector>

#include "memory/host/worker_arena.h"
#include "optim/adamw.h"
#include "optim/adamw_element.h"
#include "tests/kernels/every_target.h"
#include "tests/optim/narrow_training.h"

// AdamW with moments in 16 and 8 bits.
namespace terrace {
namespace {

using test::Form;
using test::kForms;
using test::on_every_target;
using test::Training;

class AdamWMoments : public testing::TestWithParam<Form> {};

TEST_P(AdamWMoments, HaveTheBitsOfTheReferenceOnEveryTarget) {
  constexpr std::int64_t kElements = 5 * 4096 + 65536;
  constexpr std::uint32_t kSteps = 4;
  Training expected(GetParam(), kElements);
  for (std::uint32_t t = 1; t <= kSteps; ++t) adamw_reference(expected.step(t));
  for (const int threads : {1, 3}) {
    on_every_target(threads, [&](const KernelContext& context) {
      Training training(GetParam(), kElements);
      for (std::uint32_t t = 1; t <= kSteps; ++t) adamw_cpu(context, training.step(t));
      EXPECT_EQ(training.parameter, expected.parameter);
      EXPECT_EQ(training.state, expected.state);
    });
  }
}

TEST_P(AdamWMoments, HaveTheBitsOfTheReferenceAtTheEndsOfTheRange) {
  constexpr std::int64_t kElements = 2 * 4096;
  Training expected(GetParam(), kElements);
  for (std::uint32_t t = 1; t <= 3; ++t) {
    adamw_reference(step_to_the_ends_of_the_range(expected, t));
  }
  on_every_target(1, [&](const KernelContext& context) {
    Training training(GetParam(), kElements);
    for (std::uint32_t t = 1; t <= 3; ++t) {
      adamw_cpu(context, step_to_the_ends_of_the_range(training, t));
    }
    EXPECT_EQ(training.parameter, expected.parameter);
    EXPECT_EQ(training.state, expected.state);
  });
}

TEST(AdamWMoments, EveryCodeIsReadAsTheReferenceReadsIt) {
  for (const Form& form : kForms) {
    if (form.format.slot_form != SlotForm::kInt8) continue;
    SCOPED_TRACE(form.name);
    Training expected(form, 4096);
    adamw_reference(step_from_every_code(expected));
    on_every_target(1, [&](const KernelContext& context) {
      Training training(form, 4096);
      adamw_cpu(context, step_from_every_code(training));
      EXPECT_EQ(training.parameter, expected.parameter);
      EXPECT_EQ(training.state, expected.state);
    });
  }
}

// Chunks do not change bits: the same elements in two calls.
TEST_P(AdamWMoments, DoNotDependOnWhereARangeBegins) {
  constexpr std::int64_t kElements = 3 * 4096;
  WorkerArena workers(2);
  KernelContext context;
  context.workers = &workers;
  Training whole(GetParam(), kElements), first(GetParam(), 4096), second(GetParam(), 2 * 4096);
  for (std::uint32_t t = 1; t <= 3; ++t) {
    const ParameterUpdate update = whole.step(t);
    ParameterUpdate front = first.step(t);
    ParameterUpdate back = second.step(t);
    front.decayed_elements = update.decayed_elements;
    back.decayed_elements = update.decayed_elements - 4096;
    back.rounding.first_element += 4096;
    std::copy_n(whole.gradient.begin(), 4096, first.gradient.begin());
    std::copy_n(whole.gradient.begin() + 4096, 2 * 4096, second.gradient.begin());
    adamw_cpu(context, update);
    adamw_cpu(context, front);
    adamw_cpu(context, back);
  }
  std::vector<std::byte> joined = first.parameter;
  joined.insert(joined.end(), second.parameter.begin(), second.parameter.end());
  EXPECT_EQ(joined, whole.parameter);
}

TEST_P(AdamWMoments, OtherSeedsAndStepsRoundOtherwise) {
  WorkerArena workers(1);
  KernelContext context;
  context.workers = &workers;
  Training plain(GetParam(), 4096), seed(GetParam(), 4096), stream(GetParam(), 4096);
  adamw_cpu(context, plain.step(1));
  ParameterUpdate update = seed.step(1);
  ++update.rounding.seed;
  adamw_cpu(context, update);
  update = stream.step(1);
  ++update.rounding.stream;
  adamw_cpu(context, update);
  EXPECT_NE(seed.state, plain.state);
  EXPECT_NE(stream.state, plain.state);
}

// With beta2 = 0.999 a step changes a second moment by a thousandth at the most: less than half a
// step of bf16 or of a code, so that rounding to nearest would leave it where it is for ever. The
// mean of many elements must follow the exact one. It is a mean of 4096 elements, each within a
// step (1/16 of its size for codes) of its expectation; ten standard deviations are 10/64 of that.
TEST_P(AdamWMoments, SecondMomentsFollowSmallChanges) {
  WorkerArena workers(2);
  KernelContext context;
  context.workers = &workers;
  Training training(GetParam(), 4096);
  StepScalars scalars;
  ParameterUpdate update = training.step(1);
  update.options.values.at(1) = 0.999F;
  update.scalars = &scalars;
  float exact = 0;
  for (std::uint32_t t = 1; t <= 600; ++t) {
    scalars.step = t;
    const float g = t <= 100 ? 1.0F : 0.25F;
    std::ranges::fill(training.gradient, g);
    exact = std::fma(1.0F - 0.999F, g * g - exact, exact);
    adamw_cpu(context, update);
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

TEST(AdamWMomentsDeathTest, RefusePartsOfBlocks) {
  Training training(kForms[1], 4096);
  ParameterUpdate update = training.step(1);
  update.rounding.first_element = 128;
  EXPECT_DEATH(adamw_reference(update), "128 and 0");
}

TEST(StateFormat, BytesPerParameter) {
  constexpr std::int64_t kElements = 1024 * 4096;
  const auto bytes = [](MasterForm master, SlotForm moments) {
    return static_cast<double>(StateFormat{master, moments}.bytes(kElements)) / kElements;
  };
  EXPECT_EQ(bytes(MasterForm::kFp32, SlotForm::kFp32), 12);
  EXPECT_EQ(bytes(MasterForm::kSplit, SlotForm::kFp32), 10);
  EXPECT_EQ(bytes(MasterForm::kParameter, SlotForm::kFp32), 8);
  EXPECT_EQ(bytes(MasterForm::kSplit, SlotForm::kBf16), 6);
  EXPECT_EQ(bytes(MasterForm::kSplit, SlotForm::kInt8), 4 + 2.0 / 256);
}

}  // namespace
}  // namespace terrace
