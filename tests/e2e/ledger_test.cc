#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/e2e/tiny_training.h"

namespace terrace {
namespace {

using testing::ContainsRegex;
using testing::HasSubstr;
using testing::Not;

constexpr const char* kTable =
    "\nbudget +[0-9a-zA-Z. ]+\npeak +[0-9a-zA-Z. ]+\n +parameters +[0-9a-zA-Z. -]+\n +gradients ";

TEST(DryRun, PrintsTheLedgerAndWritesNothing) {
  const TinyTraining training;
  const Outcome outcome = training.train(
      "run", training.nvme() + Arguments{"--max-steps", "3", "--dry-run", "--device-memory",
                                         "64MiB", "--place-optimizer", "nvme"});
  EXPECT_THAT(outcome.output, ContainsRegex(kTable));
  EXPECT_THAT(outcome.output,
              ContainsRegex("\n +device +host +nvme\nbudget +64.0 MiB +64.0 MiB +none\n"));
  EXPECT_THAT(outcome.output, HasSubstr("\nbytes in a step:"));
  EXPECT_THAT(outcome.output, HasSubstr("\nwritten to the drives: "));
  EXPECT_THAT(outcome.output, ContainsRegex("\npredicted: about .* s a step here, .* tokens/s"));
  EXPECT_THAT(outcome.output, HasSubstr(" TB a day are written"));
  EXPECT_FALSE(training.directory().has("run"));
  EXPECT_TRUE(training.nvme_is_empty());
}

TEST(DryRun, SaysWhoWritesToHowManyDrives) {
  const TinyTraining training;
  std::filesystem::create_directory(training.path("second"));
  const Outcome outcome =
      training.train("run", training.nvme() + Arguments{"--nvme", training.path("second"),
                                                        "--local-ranks", "2", "--max-steps", "3",
                                                        "--dry-run", "--place-optimizer", "nvme"});
  EXPECT_THAT(outcome.output, HasSubstr("\nwritten to the drives together by this rank: "));
}

// Too small a budget is found before anything is made, and the message says which budget would do.
TEST(DoesNotFit, Is3BeforeAnythingIsMade) {
  const TinyTraining training;
  const std::vector<Arguments> cases = {
      {"--device-memory", "64KiB"},
      {"--host-memory", "64KiB"},
      {"--device-memory", "64MiB", "--host-memory", "64KiB", "--place-optimizer", "host"}};
  for (const Arguments& budgets : cases) {
    SCOPED_TRACE(budgets.at(0) + " " + budgets.at(1));
    const Outcome outcome = run_program(
        training.command("run", training.nvme() + Arguments{"--max-steps", "3"} + budgets));
    EXPECT_EQ(outcome.code, 3) << outcome;
    EXPECT_THAT(outcome.errors, HasSubstr("does not fit"));
    EXPECT_THAT(outcome.errors, ContainsRegex(kTable));
    EXPECT_THAT(outcome.errors, ContainsRegex("to make it fit(: |, do one of these:\n  )raise --"));
    EXPECT_FALSE(training.directory().has("run"));
    EXPECT_TRUE(training.nvme_is_empty());
  }
}

TEST(DoesNotFit, ADriveWithTooSmallASizeIsNamed) {
  const TinyTraining training;
  const Outcome outcome = run_program(
      training.command("run", {"--max-steps", "3", "--nvme", training.path("nvme") + ":64KiB",
                               "--place-optimizer", "nvme"}));
  EXPECT_EQ(outcome.code, 3) << outcome;
  EXPECT_THAT(outcome.errors, HasSubstr("raise the SIZE of --nvme to "));
  EXPECT_FALSE(training.directory().has("run"));
  EXPECT_TRUE(training.nvme_is_empty());
}

// The size that the refusal names is enough.
TEST(DoesNotFit, WhatItSaysWouldFitFits) {
  const TinyTraining training(3, 64);
  for (const std::string order : {"layer-major", "micro-batch-major"}) {
    for (const std::string recompute : {"none", "full"}) {
      const Arguments steps =
          training.nvme() + Arguments{"--micro-batch-order", order, "--recompute", recompute};
      const std::string size = training.least_device_memory(steps);
      training.train(order + recompute,
                     steps + Arguments{"--max-steps", "2", "--device-memory", size});
    }
  }
}

// Every remedy that is named helps. Fewer threads are named only if they help, and a value that
// cannot be lowered is not named.
TEST(DoesNotFit, NothingIsNamedThatCannotBeLowered) {
  const TinyTraining training;
  const Arguments small = {
      "--device-memory",    "64KiB", "--max-steps",           "3", "--threads", "1",
      "--micro-batch-size", "1",     "--validation-fraction", "0"};
  const Outcome outcome = run_program(training.command("run", training.nvme() + small));
  EXPECT_EQ(outcome.code, 3) << outcome;
  EXPECT_THAT(outcome.errors, Not(HasSubstr("--threads")));
  EXPECT_THAT(outcome.errors, Not(HasSubstr("--micro-batch-size")));
}

TEST(DoesNotFit, MoreThanTheMachineHasIs3) {
  const TinyTraining training;
  const Outcome outcome =
      run_program(training.command("run", {"--max-steps", "3", "--device-memory", "1000TiB"}));
  EXPECT_EQ(outcome.code, 3) << outcome;
  EXPECT_THAT(outcome.errors, HasSubstr("--device-memory"));
  EXPECT_FALSE(training.directory().has("run"));
}

TEST(Ledger, TellsBytesPerParameter) {
  const TinyTraining training;
  const std::vector<std::pair<Arguments, const char*>> cases = {
      {{}, "16 bytes per parameter: 2 parameter, 4 gradient, 8 moments, 2 rest of the fp32 master"},
      {{"--optimizer-state-dtype", "bf16"}, "12 bytes per parameter: 2 parameter, 4 gradient, 4 "},
      {{"--optimizer-state-dtype", "int8"},
       "10.01 bytes per parameter: 2 parameter, 4 gradient, 2.008 "},
      {{"--precision", "fp32"}, "16 bytes per parameter: 4 parameter, 4 gradient, 8 moments\n"},
      {{"--optimizer", "lion"}, "12 bytes per parameter: 2 parameter, 4 gradient, 4 moments"},
      {{"--optimizer", "sgd", "--optimizer-state-dtype", "int8"},
       "9.004 bytes per parameter: 2 parameter, 4 gradient, 1.004 "},
      {{"--master-weights", "fp32"}, "18 bytes per parameter"}};
  for (const auto& [arguments, said] : cases) {
    const Outcome outcome =
        training.train("run", arguments + Arguments{"--max-steps", "3", "--dry-run"});
    EXPECT_THAT(outcome.output, HasSubstr("training state: " + std::string(said)));
  }
}

// The memory in use is within what the ledger promises.
TEST(Ledger, PeaksOfTheMetricsAreWithinTheBudgets) {
  const TinyTraining training;
  training.train("run", training.nvme() + Arguments{"--max-steps", "3", "--device-memory", "8MiB",
                                                    "--host-memory", "4MiB"});
  for (const MetricsRow& row : training.rows("run")) {
    EXPECT_GT(row.columns.at("device_peak_bytes"), 0);
    EXPECT_LE(row.columns.at("device_peak_bytes"), 8.0 * 1024 * 1024);
    EXPECT_LE(row.columns.at("host_peak_bytes"), 4.0 * 1024 * 1024);
  }
}

}  // namespace
}  // namespace terrace
