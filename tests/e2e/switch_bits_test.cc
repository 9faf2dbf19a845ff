#include <gtest/gtest.h>

#include "tests/e2e/switch_combinations.h"

namespace terrace {
namespace {

// Trains the run that combinations are compared with. Only its precision is given.
void train_reference(const TinyTraining& training, const std::string& precision) {
  training.train(precision,
                 {"--precision", precision, "--max-steps", "6", "--validation-fraction", "0"});
}

TEST(SwitchBits, EveryPairOfSettingsGivesTheBitsOfThePlainRun) {
  const TinyTraining training;
  train_reference(training, "bf16");
  train_reference(training, "fp32");
  ASSERT_EQ(training.rows("bf16").size(), 6U);
  EXPECT_NE(training.rows("bf16").front(), training.rows("fp32").front());
  int number = 0;
  for (const SwitchCombination& combination : all_pairs(11)) {
    expect_bits_of(training, combination, "run" + std::to_string(number++), combination.precision);
    if (testing::Test::HasFatalFailure()) return;
  }
  RecordProperty("combinations", number);
}

TEST(SwitchBits, PlainRunIsUnified) {
  const TinyTraining training;
  const Outcome outcome = training.train("plain", {"--max-steps", "3"});
  for (const char* column :
       {"device_peak_bytes", "nvme_used_bytes", "upload_bytes", "download_bytes", "nvme_read_bytes",
        "nvme_write_bytes", "collective_bytes", "parameter_upload_bytes",
        "parameter_nvme_read_bytes"}) {
    EXPECT_EQ(sum_of(training.rows("plain"), column), 0) << column;
  }
  EXPECT_GT(sum_of(training.rows("plain"), "host_peak_bytes"), 0);
}

// In unified mode the only movement of parameters is from the drive into memory.
TEST(SwitchBits, UnifiedModeCountsLoadsFromTheDriveAsParameterUploads) {
  const TinyTraining training;
  training.train("run",
                 training.nvme() + Arguments{"--max-steps", "3", "--place-parameters", "nvme"});
  for (const MetricsRow& row : training.rows("run")) {
    EXPECT_GT(row.columns.at("parameter_upload_bytes"), 0) << row;
    EXPECT_EQ(row.columns.at("parameter_upload_bytes"), row.columns.at("parameter_nvme_read_bytes"))
        << row;
  }
}

// If a budget does not hold the state of a step, the state is spread over the tiers without further
// flags.
TEST(SwitchBits, SmallBudgetsGiveTheBitsOfThePlainRun) {
  const TinyTraining training(4, 64);
  const Arguments steps = {"--max-steps", "4"};
  training.train("plain", steps);
  const std::string device = training.least_device_memory(training.nvme());
  training.train("small", steps + training.nvme() +
                              Arguments{"--device-memory", device, "--host-memory", "2MiB"});
  training.expect_same("small", "plain", "final");
  for (const MetricsRow& row : training.rows("small")) {
    EXPECT_GT(row.columns.at("upload_bytes"), 0) << row;
    EXPECT_LE(row.columns.at("host_peak_bytes"), 2.0 * 1024 * 1024) << row;
    if (row.step == 1) continue;  // the update of a step runs in the next one
    EXPECT_GT(row.columns.at("nvme_read_bytes"), 0) << row;
    EXPECT_GT(row.columns.at("nvme_write_bytes"), 0) << row;
  }
  EXPECT_TRUE(training.nvme_is_empty());
}

TEST(SwitchBits, SeedsAndDataDoChangeBits) {
  const TinyTraining training;
  training.train("first", {"--max-steps", "2"});
  training.train("again", {"--max-steps", "2"});
  training.train("seed", {"--max-steps", "2", "--seed", "5"});
  EXPECT_EQ(training.rows("again"), training.rows("first"));
  EXPECT_NE(training.rows("seed").front().bits, training.rows("first").front().bits);
}

}  // namespace
}  // namespace terrace
