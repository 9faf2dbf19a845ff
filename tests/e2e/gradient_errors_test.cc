#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <nlohmann/json.hpp>

#include "tests/e2e/tiny_training.h"

// --error-feedback: a checkpoint has what the codes of each rank's gradients have lost.
namespace terrace {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;
using testing::Not;

const Arguments kSixSteps = {"--max-steps", "6"};
const Arguments kStopAfterTwo = {"--stop-after-step", "2"};
const Arguments kGoesOn = {"--resume", "auto"};
const Arguments kInt4 = {"--gradient-wire-dtype", "int4"};

Arguments ranks_of_stage(int count, int stage) {
  return {"--local-ranks", std::to_string(count), "--zero-stage", std::to_string(stage)};
}

TEST(GradientErrors, AResumedRunHasTheBitsOfOneInOnePiece) {
  const TinyTraining training;
  const Arguments coded = kSixSteps + ranks_of_stage(2, 1) + kInt4;
  training.train("alone", coded);
  training.train("run", coded + kStopAfterTwo);
  for (const char* file : {"errors-00000.bin", "errors-00001.bin"}) {
    EXPECT_TRUE(training.directory().has(std::string("run/checkpoint-2/") + file)) << file;
  }
  const Outcome resumed = training.train("run", coded + kGoesOn);
  EXPECT_THAT(resumed.output, Not(HasSubstr("errors of coded gradients")));
  EXPECT_EQ(training.rows("run").size(), 6U);
  training.expect_same("run", "alone", "final");
}

// Errors on a drive lie there chunk by chunk. No ZeRO stage divides them.
TEST(GradientErrors, LiveOnInAnotherTierAndStage) {
  const TinyTraining training;
  const Arguments on_drive = training.nvme() + Arguments{"--place-gradient-errors", "nvme"};
  training.train("alone", kSixSteps + ranks_of_stage(2, 1) + kInt4);
  training.train("run", kSixSteps + ranks_of_stage(2, 3) + kInt4 + on_drive + kStopAfterTwo);
  training.train("run", kSixSteps + ranks_of_stage(2, 2) + kInt4 + kGoesOn +
                            Arguments{"--stop-after-step", "4"});
  training.train("run", kSixSteps + ranks_of_stage(2, 1) + kInt4 + on_drive + kGoesOn +
                            Arguments{"--stop-after-step", "0"});
  training.expect_same("run", "alone", "final");
  EXPECT_TRUE(training.nvme_is_empty());
}

// The stages of a pipeline have errors of different sizes.
TEST(GradientErrors, OfPipelinesGoOnToo) {
  const TinyTraining training(3);
  const Arguments coded =
      kSixSteps + ranks_of_stage(4, 1) + kInt4 + Arguments{"--pipeline-parallel", "2"};
  training.train("alone", coded);
  training.train("run",
                 coded + Arguments{"--checkpoint-every", "2", "--keep-last", "1"} + kStopAfterTwo);
  EXPECT_NE(fs::file_size(training.path("run/checkpoint-2/errors-00000.bin")),
            fs::file_size(training.path("run/checkpoint-2/errors-00003.bin")));
  training.train("run", coded + kGoesOn);
  training.expect_same("run", "alone", "final");
}

// Checkpoints that are due in the middle of a run change nothing in it.
TEST(GradientErrors, AreSavedBetweenSteps) {
  const TinyTraining training;
  const Arguments coded = kSixSteps + ranks_of_stage(2, 2) + kInt4;
  training.train("alone", coded);
  const Outcome saving = training.train("run", coded + Arguments{"--checkpoint-every", "2"});
  EXPECT_THAT(saving.output, HasSubstr("saved " + training.path("run/checkpoint-4")));
  training.expect_same("run", "alone", "final");
  const std::string from = training.path("run/checkpoint-4");
  training.train("other", coded + Arguments{"--resume", from});
  EXPECT_TRUE(training.files("other", "final") == training.files("alone", "final"));
}

TEST(GradientErrors, StartFromZeroOnAnotherMesh) {
  const TinyTraining training;
  training.train("run", kSixSteps + ranks_of_stage(2, 1) + kInt4 + kStopAfterTwo);
  const Outcome resumed = training.train("run", kSixSteps + ranks_of_stage(4, 1) + kInt4 + kGoesOn);
  EXPECT_THAT(resumed.output,
              HasSubstr("the checkpoint's errors of coded gradients are of another mesh or another "
                        "division of the model, so they start from zero\n"));
  EXPECT_EQ(training.rows("run").size(), 6U);
}

TEST(GradientErrors, MayBeginOrEndWithACheckpoint) {
  const TinyTraining training;
  training.train("run", kSixSteps + ranks_of_stage(2, 1) + kStopAfterTwo);
  EXPECT_FALSE(training.directory().has("run/checkpoint-2/errors-00000.bin"));
  const Outcome begins = training.train("run", kSixSteps + ranks_of_stage(2, 1) + kInt4 + kGoesOn +
                                                   Arguments{"--stop-after-step", "4"});
  EXPECT_THAT(begins.output, HasSubstr("the checkpoint has no errors of coded gradients, so they "
                                       "start from zero\n"));
  EXPECT_TRUE(training.directory().has("run/checkpoint-4/errors-00000.bin"));
  const Outcome ends = training.train(
      "run", kSixSteps + ranks_of_stage(2, 1) + kGoesOn + Arguments{"--stop-after-step", "0"});
  EXPECT_THAT(ends.output, HasSubstr("the checkpoint's errors of coded gradients are not used\n"));
}

TEST(GradientErrors, DamageIsNamed) {
  const TinyTraining training;
  const Arguments coded = kSixSteps + ranks_of_stage(2, 1) + kInt4;
  training.train("run", coded + kStopAfterTwo);
  const std::vector<MetricsRow> rows = training.rows("run");
  const std::string file = "run/checkpoint-2/errors-00001.bin";
  std::string bytes = training.directory().read(file);
  bytes.at(bytes.size() / 2) = static_cast<char>(bytes.at(bytes.size() / 2) ^ 1);
  training.directory().write(file, bytes);
  const Outcome outcome = run_program(training.command("run", coded + kGoesOn));
  EXPECT_EQ(outcome.code, 5) << outcome;
  EXPECT_THAT(outcome.errors, HasSubstr("checkpoint-2/errors-00001.bin: the ")) << outcome;
  EXPECT_EQ(training.rows("run"), rows);
  // Only runs that use them read them.
  training.train("run", kSixSteps + ranks_of_stage(2, 1) + kGoesOn);
}

// The files that are not tensors disturb nobody who reads a checkpoint.
TEST(GradientErrors, AreNoPartOfTheModel) {
  const TinyTraining training;
  training.train("run", kSixSteps + ranks_of_stage(2, 1) + kInt4 + kStopAfterTwo);
  const std::string checkpoint = training.path("run/checkpoint-2");
  const Outcome inspected = run_program({"inspect", checkpoint, "--json"});
  ASSERT_EQ(inspected.code, 0) << inspected;
  const auto document = nlohmann::json::parse(inspected.output).at("results").at(0);
  EXPECT_EQ(document.at("kind"), "checkpoint");
  std::uint64_t files = 0;
  for (const auto& file : fs::directory_iterator(checkpoint)) files += file.file_size();
  EXPECT_EQ(document.at("size_bytes"), files);
  const Outcome exported = run_program({"export", checkpoint, training.path("exported")});
  EXPECT_EQ(exported.code, 0) << exported;
  EXPECT_TRUE(training.directory().has("exported/config.json"));
  EXPECT_FALSE(training.directory().has("exported/errors-00000.bin"));
}

}  // namespace
}  // namespace terrace
