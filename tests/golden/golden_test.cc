#include <fmt/format.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "runtime/model/model_config.h"
#include "tests/golden/golden_differences.h"
#include "tests/golden/golden_families.h"
#include "tests/sanitized.h"

// The runtime's results compared with the results of transformers, with the same weights and
// tokens. golden_differences.h has the bounds.
namespace terrace {
namespace {

Differences compare_forward(const GoldenCase& golden) {
  Differences differences;
  differences.add_tensor("logits", golden_run_logits(golden), golden.logits(),
                         golden.spread.logits);
  if (continue_prompt(golden, false) != golden.continuation) {
    differences.add("the continuation differs");
  }
  if (continue_prompt(golden, true) != golden.continuation) {
    differences.add("the continuation with kept keys differs");
  }
  return differences;
}

class Golden : public testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    golden_ = std::make_unique<GoldenCase>(golden_case_directory(GetParam()));
  }

  // Skips meshes under the sanitizers: there tests/runtime runs their code, with one model.
  void expect_training(const GoldenMesh& mesh) const {
    if (kSanitized && mesh.shape.ranks() > 1) GTEST_SKIP() << "takes long under the sanitizers";
    EXPECT_EQ(fmt::format("{}", fmt::join(compare_training(*golden_, mesh).list(), "\n")), "");
  }

  std::unique_ptr<GoldenCase> golden_;
};

TEST_P(Golden, LogitsAndContinuation) {
  EXPECT_EQ(fmt::format("{}", fmt::join(compare_forward(*golden_).list(), "\n")), "");
}

TEST_P(Golden, Training) { expect_training({}); }
TEST_P(Golden, TrainingOfTwoTensorRanks) { expect_training({.shape = {.tensor = 2}}); }
TEST_P(Golden, TrainingOfTwoPipelineStages) { expect_training({.shape = {.pipeline = 2}}); }
TEST_P(Golden, TrainingOfTwoRanksThatShareAll) {
  expect_training({.shape = {.data = 2}, .zero_stage = 3});
}

INSTANTIATE_TEST_SUITE_P(Cases, Golden, testing::ValuesIn(cases_that_hold()),
                         [](const auto& info) { return info.param; });

TEST(GoldenCases, EachIsOfAKnownFamily) {
  const std::vector<std::string> names = golden_case_names();
  for (const std::string& name : names) {
    const std::string family = family_of(name);
    EXPECT_NE(has_name(kFamilies, family), has_name(kFamiliesNotBuilt, family))
        << name << " is of " << family;
  }
  for (const std::string_view name : kCasesNotBuilt) {
    EXPECT_TRUE(has_name(names, name)) << "there is no case " << name;
  }
}

TEST(GoldenCases, EachFamilyHasOne) {
  std::vector<std::string> families;
  for (const std::string& name : golden_case_names()) families.push_back(family_of(name));
  for (const std::string_view family : kFamilies) EXPECT_TRUE(has_name(families, family)) << family;
  for (const std::string_view family : kFamiliesNotBuilt) {
    EXPECT_TRUE(has_name(families, family)) << family;
  }
}

TEST(GoldenCases, FamiliesThatAreNotBuiltAreRefused) {
  for (const std::string& name : golden_case_names()) {
    if (!has_name(kFamiliesNotBuilt, family_of(name))) continue;
    EXPECT_THROW(load_model_config(golden_case_directory(name)), ConfigError)
        << name << " loads now: move its family in golden_families.h";
  }
}

// Returns whether a case is refused or its results differ.
bool differs(const std::string& name) {
  const GoldenCase golden(golden_case_directory(name));
  try {
    return !compare_forward(golden).list().empty() || !compare_training(golden, {}).list().empty();
  } catch (const Error&) {  // of the config.json, or of the weights
    return true;
  }
}

TEST(GoldenCases, OptionsThatAreNotBuiltDoNotHold) {
  for (const std::string_view name : kCasesNotBuilt) {
    EXPECT_TRUE(differs(std::string(name)))
        << name << " holds now: take it from the list in golden_families.h";
  }
}

}  // namespace
}  // namespace terrace
