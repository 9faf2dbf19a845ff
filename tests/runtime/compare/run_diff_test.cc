#include "runtime/compare/run_diff.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "runtime/config/train_flags.h"
#include "tests/runtime/temporary_directory.h"

namespace terrace {
namespace {

using testing::HasSubstr;

class RunDiffs : public testing::Test {
 protected:
  void write(const std::string& run, const std::string& rows, const std::string& config = "",
             const std::string& facts = "{}") const {
    directory_.write(run + "/metrics.jsonl", rows);
    directory_.write(run + "/config.toml", config);
    directory_.write(run + "/run.json", facts);
  }
  std::string text() const {
    const RecordedRun a = read_recorded_run(directory_.path("a"));
    const RecordedRun b = read_recorded_run(directory_.path("b"));
    const RunDiff diff = diff_runs(a, b);
    const auto json = nlohmann::json::parse(diff_json(a, b, diff));
    EXPECT_EQ(json.at("equal"), diff.is_equal);
    return diff_text(a, b, diff);
  }

  const TemporaryDirectory directory_;
};

constexpr const char* kRows =
    "{\"step\":1,\"loss\":5.5,\"grad_norm\":1.25,\"step_s\":0.5}\n"
    "{\"step\":2,\"loss\":5.25,\"grad_norm\":1.125,\"step_s\":0.5,\"validation_loss\":5.0}\n";

TEST_F(RunDiffs, TimesDoNotCount) {
  write("a", kRows);
  write("b",
        "{\"step\":1,\"loss\":5.5,\"grad_norm\":1.25,\"step_s\":0.75}\n"
        "{\"step\":2,\"loss\":5.25,\"grad_norm\":1.125,\"validation_loss\":5.0}\n");
  EXPECT_THAT(text(), HasSubstr("equal in all that both have recorded"));
  EXPECT_THAT(text(), HasSubstr("metrics.jsonl: equal in 2 steps, 1 to 2"));
}

TEST_F(RunDiffs, NamesTheFirstStepOfEachColumn) {
  write("a", kRows);
  write("b",
        "{\"step\":1,\"loss\":5.5,\"grad_norm\":1.2500000000000002}\n"
        "{\"step\":2,\"loss\":5.25,\"grad_norm\":1.0,\"validation_loss\":5.5}\n"
        "{\"step\":3,\"loss\":5.0,\"grad_norm\":1.0}\n");
  const std::string found = text();
  EXPECT_THAT(found, HasSubstr("grad_norm differs from step 1 on: 1.25 and 1.2500000000000002"));
  EXPECT_THAT(found, HasSubstr("validation_loss differs from step 2 on: 5.0 and 5.5"));
  EXPECT_THAT(found, testing::Not(HasSubstr("\nloss differs")));
  EXPECT_THAT(found, HasSubstr("has 1 step that"));
}

TEST_F(RunDiffs, TellsOptionsThatMayChangeResultsFromOthers) {
  write("a", kRows, "learning_rate = 0.001\nthreads = 2\nlocal_ranks = 2\npipeline_parallel = 2\n");
  write("b", kRows, "learning_rate = 0.002\nlocal_ranks = 1\npipeline_parallel = 1\n",
        "{\"version\":\"9\"}");
  const std::string found = text();
  const std::size_t others = found.find("options that do not change results:\n");
  ASSERT_NE(others, std::string::npos) << found;
  EXPECT_THAT(found.substr(0, others),
              HasSubstr("options that may change results:\n  learning_rate: 0.001 and 0.002\n"));
  EXPECT_THAT(found.substr(others), HasSubstr("  threads: 2 and not set\n"));
  EXPECT_THAT(found.substr(others), HasSubstr("  local_ranks: 2 and 1\n"));
}

TEST_F(RunDiffs, OtherNumbersOfDataParallelRanksMayChangeResults) {
  write("a", kRows, "local_ranks = 2\n");
  write("b", kRows, "local_ranks = 1\n");
  EXPECT_THAT(text(), HasSubstr("options that may change results:\n  local_ranks"));
}

TEST_F(RunDiffs, NotesOtherVersionsAndTornFiles) {
  write("a", std::string(kRows) + "{\"step\":3,\"lo", "", R"({"version":"1","host":{"cpu":"A"}})");
  write("b", kRows, "x = [", R"({"version":"2","host":{"cpu":"B"}})");
  const std::string found = text();
  EXPECT_THAT(found, HasSubstr("metrics.jsonl: 1 line is left out, because they are no rows"));
  EXPECT_THAT(found, HasSubstr("the runs have another version: 1 and 2"));
  EXPECT_THAT(found, HasSubstr("another cpu: A and B"));
  EXPECT_THAT(found, HasSubstr("config.toml is not TOML"));
}

TEST_F(RunDiffs, PathsThatAreNoRunsAreRefused) {
  write("a", kRows);
  directory_.write("a/checkpoint-1/manifest.json", "{}");
  directory_.write("other/file", "");
  TERRACE_EXPECT_THROW_WITH(read_recorded_run(directory_.path("none")), ConfigError,
                            "does not exist");
  TERRACE_EXPECT_THROW_WITH(read_recorded_run(directory_.path("other")), ConfigError,
                            "is no run directory");
  TERRACE_EXPECT_THROW_WITH(read_recorded_run(directory_.path("a/checkpoint-1")), ConfigError,
                            "name the run directory above it, " + directory_.path("a"));
}

TEST_F(RunDiffs, RunsWithoutACommonStepAreRefused) {
  write("a", kRows);
  write("b", "{\"step\":3,\"loss\":5.5}\n");
  TERRACE_EXPECT_THROW_WITH(text(), ConfigError, "no step in common");
}

// Otherwise a flag that was renamed would count as one that may change results.
TEST(KeysWithoutEffect, AreKeysOfTrain) {
  for (const std::string_view key : keys_without_effect()) {
    std::string flag(key);
    std::ranges::replace(flag, '_', '-');
    EXPECT_TRUE(std::ranges::any_of(train_flags(), [&](const TrainFlag& of) {
      return of.spec.name == flag;
    })) << key;
  }
}

}  // namespace
}  // namespace terrace
