#include "runtime/train/metrics_file.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <limits>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <vector>

#include "base/error.h"
#include "tests/runtime/temporary_directory.h"

namespace terrace {
namespace {

std::vector<nlohmann::json> rows_of(const TemporaryDirectory& directory) {
  std::istringstream lines(directory.read("metrics.jsonl"));
  std::vector<nlohmann::json> rows;
  for (std::string line; std::getline(lines, line);) rows.push_back(nlohmann::json::parse(line));
  return rows;
}

StepMetrics metrics_of(std::int64_t step) {
  StepMetrics metrics;
  metrics.step = step;
  metrics.loss = 2.5;
  metrics.gradient_norm = 0.75;
  return metrics;
}

TEST(MetricsFile, SaysWhatTheLossScaleWasAndWhichStepsWereSkipped) {
  const TemporaryDirectory directory;
  MetricsFile file(directory.path(), 0, Ledger());
  file.write(metrics_of(1));
  StepMetrics skipped = metrics_of(2);
  skipped.gradient_norm = std::numeric_limits<double>::infinity();
  skipped.loss_scale = 65536;
  skipped.was_skipped = true;
  file.write(skipped);
  const std::vector<nlohmann::json> rows = rows_of(directory);
  ASSERT_EQ(rows.size(), 2U);
  EXPECT_EQ(rows[0].at("loss_scale"), 1);
  EXPECT_EQ(rows[0].at("grad_norm"), 0.75);
  EXPECT_FALSE(rows[0].contains("skipped"));
  EXPECT_EQ(rows[1].at("loss_scale"), 65536);
  EXPECT_EQ(rows[1].at("loss"), 2.5);
  EXPECT_TRUE(rows[1].at("grad_norm").is_null());
  EXPECT_EQ(rows[1].at("skipped"), true);
}

TEST(MetricsFile, KeepsTheRowsOfAllRunsBefore) {
  const TemporaryDirectory directory;
  std::string before;
  for (std::int64_t run = 1; run <= 3; ++run) {
    MetricsFile file(directory.path(), 0, Ledger());
    const bool has_before = directory.has("metrics.jsonl.before");
    EXPECT_EQ(has_before, run > 1);
    EXPECT_EQ(has_before ? directory.read("metrics.jsonl.before") : "", before);
    file.write(metrics_of(run));
    before += directory.read("metrics.jsonl");
  }
}

TEST(MetricsFile, IsNotReplacedWhereItCannotBeRead) {
  const TemporaryDirectory directory;
  std::filesystem::create_directory(directory.path("metrics.jsonl"));
  for (const std::int64_t step : {0, 2}) {
    EXPECT_THROW(MetricsFile(directory.path(), step, Ledger()), IoError);
  }
}

TEST(MetricsFile, GoesOnBehindTheRowsOfACheckpoint) {
  const TemporaryDirectory directory;
  {
    MetricsFile file(directory.path(), 0, Ledger());
    for (std::int64_t step = 1; step <= 3; ++step) file.write(metrics_of(step));
  }
  const std::string foreign = "5\nnull\n{\"step\":\"one\"}\nno JSON\n{\"step\":2,";
  directory.write("metrics.jsonl", directory.read("metrics.jsonl") + foreign);
  MetricsFile file(directory.path(), 2, Ledger());
  file.write(metrics_of(7));
  const std::vector<nlohmann::json> rows = rows_of(directory);
  ASSERT_EQ(rows.size(), 3U);
  EXPECT_EQ(rows[1].at("step"), 2);
  EXPECT_EQ(rows[2].at("step"), 7);
}

}  // namespace
}  // namespace terrace
