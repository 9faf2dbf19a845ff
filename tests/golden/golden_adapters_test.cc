#include <fmt/format.h>
#include <gtest/gtest.h>

#include "tests/golden/golden_differences.h"

// Adapters that PEFT has saved: losses, gradients and parameters after a training, compared with
// PEFT's, within the bounds of golden_differences.h.
namespace terrace {
namespace {

class GoldenAdapters : public testing::TestWithParam<std::string> {
 protected:
  static void expect_training(const GoldenMesh& mesh) {
    const GoldenCase golden(golden_adapter_directory(GetParam()));
    ASSERT_FALSE(golden.spread.gradients.empty());
    EXPECT_EQ(fmt::format("{}", fmt::join(compare_training(golden, mesh).list(), "\n")), "");
  }
};

TEST_P(GoldenAdapters, Training) { expect_training({}); }
TEST_P(GoldenAdapters, TrainingOfTwoTensorRanks) { expect_training({.shape = {.tensor = 2}}); }
TEST_P(GoldenAdapters, TrainingOfTwoPipelineStages) { expect_training({.shape = {.pipeline = 2}}); }
TEST_P(GoldenAdapters, TrainingOfTwoRanksThatShareAll) {
  expect_training({.shape = {.data = 2}, .zero_stage = 3});
}

INSTANTIATE_TEST_SUITE_P(Cases, GoldenAdapters, testing::ValuesIn(golden_adapter_names()),
                         [](const auto& info) { return info.param; });

// Without the adapter's matrices the first loss is different.
TEST(GoldenAdapterCases, DoNotHoldWithoutTheirAdapters) {
  ASSERT_EQ(golden_adapter_names().size(), 5U);
  for (const std::string& name : golden_adapter_names()) {
    GoldenCase golden(golden_adapter_directory(name));
    golden.adapter.clear();
    const double loss = run_golden(golden, {}).losses.front();
    EXPECT_GT(std::abs(loss - golden.losses.front()), 1e-2) << name;
  }
}

}  // namespace
}  // namespace terrace
