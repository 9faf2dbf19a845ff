#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <nlohmann/json.hpp>

#include "tests/e2e/program_run.h"

// Benchmarks as users type them: of real sizes, ended by a time limit. The tests look at whether
// they run and at what they print, never at how fast anything was.
namespace terrace {
namespace {

using nlohmann::json;
using testing::HasSubstr;
using testing::Not;

class LimitedBench : public testing::TestWithParam<const char*> {};

TEST_P(LimitedBench, HasRowsInItsTable) {
  const TemporaryDirectory drive;
  const Outcome outcome =
      run_program({"bench", GetParam(), "--time-limit", "20", "--json", "--nvme", drive.path()});
  ASSERT_EQ(outcome.code, 0) << outcome;
  EXPECT_THAT(outcome.errors, Not(HasSubstr("terrace: error")));
  const json document = json::parse(outcome.output);
  EXPECT_FALSE(document.at("results").empty()) << outcome;
  for (const json& result : document.at("results")) {
    EXPECT_LE(1, result.at("repetitions").get<int>());
    EXPECT_LT(0, result.at("value").get<double>()) << result;
    EXPECT_TRUE(result.at("repetitions") != 1 || result.at("unsteady") == true) << result;
  }
  EXPECT_TRUE(std::filesystem::is_empty(drive.path()));
}

INSTANTIATE_TEST_SUITE_P(Kinds, LimitedBench,
                         testing::Values("io", "copy", "optimizer", "collective", "kernel", "step",
                                         "overlap", "simulator"),
                         [](const auto& kind) { return std::string(kind.param); });

TEST(LimitedBench, OfChosenRowsHasThese) {
  const Outcome outcome =
      run_program({"bench", "collective", "--time-limit", "20", "--json", "--only",
                   "*_all_reduce_fp32_*", "thread_broadcast_bf16_1mib"});
  ASSERT_EQ(outcome.code, 0) << outcome;
  std::vector<std::string> names;
  const json document = json::parse(outcome.output);
  for (const json& result : document.at("results")) names.push_back(result.at("name"));
  EXPECT_THAT(names, testing::UnorderedElementsAre(
                         "thread_all_reduce_fp32_4kib", "thread_all_reduce_fp32_128kib",
                         "thread_all_reduce_fp32_1mib", "thread_all_reduce_fp32_16mib",
                         "thread_all_reduce_fp32_256mib", "thread_broadcast_bf16_1mib"));
}

}  // namespace
}  // namespace terrace
