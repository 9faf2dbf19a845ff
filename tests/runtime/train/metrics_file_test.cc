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

TEST(MetricsFile, HasWhatIsKnownOfTheGradientNoise) {
  const TemporaryDirectory directory;
  MetricsFile file(directory.path(), 0, Ledger());
  file.write(metrics_of(1));
  StepMetrics measured = metrics_of(2);
  measured.noise = {.of_step = GradientNoise{-0.5, 3}, .scale = std::nullopt, .micro_batches = 4};
  file.write(measured);
  measured.step = 3;
  measured.noise = {.of_step = std::nullopt, .scale = 12.5, .micro_batches = std::nullopt};
  file.write(measured);
  const std::vector<nlohmann::json> rows = rows_of(directory);
  for (const char* key :
       {"gradient_noise_scale", "gradient_squared_norm", "gradient_variance", "micro_batches"}) {
    EXPECT_FALSE(rows[0].contains(key)) << key;
  }
  EXPECT_FALSE(rows[1].contains("gradient_noise_scale"));
  EXPECT_EQ(rows[1].at("gradient_squared_norm"), -0.5);
  EXPECT_EQ(rows[1].at("gradient_variance"), 3);
  EXPECT_EQ(rows[1].at("micro_batches"), 4);
  EXPECT_EQ(rows[2].at("gradient_noise_scale"), 12.5);
  EXPECT_FALSE(rows[2].contains("gradient_variance"));
}

TEST(MetricsFile, HasTheWaitsOfRanks) {
  const TemporaryDirectory directory;
  MetricsFile file(directory.path(), 0, Ledger());
  file.write(metrics_of(1));
  StepMetrics waited = metrics_of(2);
  waited.waits = {.waited_s = {0.5, 0}, .waited_for_s = {0, 0.5}};
  file.write(waited);
  const std::vector<nlohmann::json> rows = rows_of(directory);
  EXPECT_FALSE(rows[0].contains("collective_wait_s"));
  EXPECT_FALSE(rows[0].contains("collective_wait_by_cause_s"));
  EXPECT_EQ(rows[1].at("collective_wait_s"), (std::vector<double>{0.5, 0}));
  EXPECT_EQ(rows[1].at("collective_wait_by_cause_s"), (std::vector<double>{0, 0.5}));
}

TEST(MetricsFile, HasTheFiguresOfRouters) {
  const TemporaryDirectory directory;
  MetricsFile file(directory.path(), 0, Ledger());
  file.write(metrics_of(1));
  StepMetrics routed = metrics_of(2);
  routed.router = RouterFigures{1.25, 3.5, 6, 0.5};
  file.write(routed);
  const std::vector<nlohmann::json> rows = rows_of(directory);
  for (const char* key :
       {"router_aux_loss", "router_z_loss", "experts_touched", "expert_share_max"}) {
    EXPECT_FALSE(rows[0].contains(key)) << key;
  }
  EXPECT_EQ(rows[1].at("router_aux_loss"), 1.25);
  EXPECT_EQ(rows[1].at("router_z_loss"), 3.5);
  EXPECT_EQ(rows[1].at("experts_touched"), 6);
  EXPECT_EQ(rows[1].at("expert_share_max"), 0.5);
}

TEST(MetricsFile, HasWhenARowWasWrittenAndTheMemoryOfTheProcess) {
  const TemporaryDirectory directory;
  MetricsFile file(directory.path(), 0, Ledger());
  StepMetrics metrics = metrics_of(1);
  metrics.time_s = 1.5e9;
  metrics.totals.process_peak_bytes = 12345;
  file.write(metrics);
  metrics.step = 2;
  metrics.flops_utilisation = 0.5;
  file.write(metrics);
  const std::vector<nlohmann::json> rows = rows_of(directory);
  EXPECT_EQ(rows[0].at("time"), 1.5e9);
  EXPECT_EQ(rows[0].at("peak_rss_bytes"), 12345);
  EXPECT_FALSE(rows[0].contains("mfu")) << "not known";
  EXPECT_EQ(rows[1].at("mfu"), 0.5);
}

TEST(MetricsFile, HasTheEnergyOnceACounterHasMoved) {
  const TemporaryDirectory directory;
  MetricsFile file(directory.path(), 0, Ledger());
  constexpr double kNone = std::numeric_limits<double>::quiet_NaN();
  const auto write = [&](std::int64_t step, double host_joules, double device_joules) {
    StepMetrics metrics = metrics_of(step);
    metrics.tokens = 100;
    metrics.totals.host_joules = host_joules;
    metrics.totals.device_joules = device_joules;
    file.write(metrics);
  };
  write(1, kNone, kNone);
  write(2, 0, kNone);
  write(3, 50, kNone);
  write(4, 0, kNone);
  write(5, kNone, 20);
  write(6, 30, 20);
  write(7, kNone, kNone);
  const std::vector<nlohmann::json> rows = rows_of(directory);
  for (const std::size_t row : {0U, 1U, 6U}) {
    EXPECT_FALSE(rows.at(row).contains("joules")) << row;
    EXPECT_FALSE(rows.at(row).contains("joules_per_token")) << row;
  }
  EXPECT_EQ(rows[2].at("joules"), 50);
  EXPECT_EQ(rows[2].at("joules_per_token"), 0.5);
  EXPECT_FALSE(rows[2].contains("host_joules")) << "there is nothing else";
  EXPECT_EQ(rows[3].at("joules"), 0);
  EXPECT_EQ(rows[4].at("joules"), 20);
  EXPECT_EQ(rows[5].at("joules"), 50);
  EXPECT_EQ(rows[5].at("host_joules"), 30);
  EXPECT_EQ(rows[5].at("device_joules"), 20);
}

TEST(MetricsFile, AddsAValidationLossToItsLastRowAndGoesOn) {
  const TemporaryDirectory directory;
  EXPECT_FALSE(lacks_validation_loss(directory.path(), 1)) << "there is no file";
  for (const std::int64_t rows_before : {0, 3}) {
    MetricsFile file(directory.path(), 0, Ledger());
    for (std::int64_t step = 1; step <= rows_before; ++step) file.write(metrics_of(step));
    const std::int64_t last = rows_before + 1;
    file.write(metrics_of(last));
    EXPECT_TRUE(lacks_validation_loss(directory.path(), last));
    EXPECT_FALSE(lacks_validation_loss(directory.path(), last + 1)) << "another step";
    file.add_to_last_row({{"first", 0.1}, {"other", 0.2}});
    EXPECT_FALSE(lacks_validation_loss(directory.path(), last));
    file.write(metrics_of(last + 1));
    const std::vector<nlohmann::json> rows = rows_of(directory);
    ASSERT_EQ(std::ssize(rows), last + 1);
    for (std::int64_t step = 1; step <= last + 1; ++step) {
      const nlohmann::json& row = rows[static_cast<std::size_t>(step - 1)];
      EXPECT_EQ(row.at("step"), step);
      EXPECT_EQ(row.at("loss"), 2.5);
      EXPECT_EQ(row.contains("validation_loss"), step == last);
    }
    const nlohmann::json& evaluated = rows[static_cast<std::size_t>(last - 1)];
    EXPECT_EQ(evaluated.at("validation_loss"), 0.1);
    EXPECT_EQ(evaluated.at("validation_loss/first"), 0.1);
    EXPECT_EQ(evaluated.at("validation_loss/other"), 0.2);
  }
}

TEST(MetricsFile, TheLossOfASetWithoutANameStandsOnce) {
  const TemporaryDirectory directory;
  MetricsFile file(directory.path(), 0, Ledger());
  StepMetrics metrics = metrics_of(1);
  metrics.validation = {{"", 0.1}, {"other", 0.2}};
  file.write(metrics);
  const nlohmann::json row = rows_of(directory).front();
  EXPECT_EQ(row.at("validation_loss"), 0.1);
  EXPECT_EQ(row.at("validation_loss/other"), 0.2);
  EXPECT_FALSE(row.contains("validation_loss/"));
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
