#include "tests/e2e/killed_training.h"

#include <gtest/gtest.h>

#include "tests/e2e/tiny_training.h"

namespace terrace {
namespace {

TEST(KilledTraining, GoesOnFromTheLastCommittedCheckpoint) {
  expect_kills_leave_no_trace(3, 4, {"--place-optimizer", "nvme"});
}

// A directory that a crash leaves beside complete checkpoints is never taken for a checkpoint.
TEST(KilledTraining, PartsOfCheckpointsAreNotPicked) {
  const TinyTraining training;
  const Arguments steps = {"--max-steps", "8"};
  training.train("alone", steps);
  training.train("run", steps + Arguments{"--stop-after-step", "4"});
  const std::filesystem::path run = training.path("run");
  const auto copy = [&](const char* name) {
    std::filesystem::copy(run / "checkpoint-4", run / name);
  };
  copy("checkpoint-7.writing");
  copy("checkpoint-6");
  std::filesystem::remove(run / "checkpoint-6" / "manifest.json");
  std::filesystem::create_directory(run / "checkpoint-5");
  training.directory().write("run/checkpoint-5/manifest.json.tmp", "{");
  const Outcome outcome = training.train("run", steps + Arguments{"--resume", "auto"});
  EXPECT_NE(outcome.output.find("resumed after step 4\n"), std::string::npos) << outcome;
  training.expect_same("run", "alone", "final");
}

}  // namespace
}  // namespace terrace
