#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <filesystem>

#include "tests/e2e/tiny_training.h"

// The files of earlier runs that a run finds in its directory.
namespace terrace {
namespace {

using testing::HasSubstr;
using testing::Not;

const Arguments kResume = {"--resume", "auto"};

TEST(RunDirectories, OfACompleteRunAreLeftAsTheyAre) {
  const TinyTraining training;
  for (const Arguments& more : {Arguments{}, Arguments{"--checkpoint-every", "2"}}) {
    const Arguments steps = Arguments{"--max-steps", "3"} + more + kResume;
    std::filesystem::remove_all(training.path("run"));
    training.train("run", steps);
    const auto rows = training.directory().read("run/metrics.jsonl");
    const auto written = std::filesystem::last_write_time(training.path("run/final/config.json"));
    const Outcome again = training.train("run", steps);
    EXPECT_THAT(again.output, HasSubstr("is complete: its result, of 3 steps, is in final\n"));
    EXPECT_THAT(again.output, Not(HasSubstr("\nstep ")));
    EXPECT_EQ(training.directory().read("run/metrics.jsonl"), rows);
    EXPECT_EQ(std::filesystem::last_write_time(training.path("run/final/config.json")), written);
  }
}

// A flag that was forgotten or changed is noticed before hours have been spent with it.
TEST(RunDirectories, TellWhatAResumedRunComputesOtherwise) {
  const TinyTraining training;
  const Arguments first = {"--max-steps", "6", "--stop-after-step", "2"};
  training.train("run", first + Arguments{"--threads", "1"});
  const Arguments rest = Arguments{"--max-steps", "6", "--stop-after-step", "4"} + kResume;
  const Outcome same = training.train("run", rest + Arguments{"--threads", "2"});
  EXPECT_THAT(same.output, Not(HasSubstr("computes with other options")));
  const Outcome other = training.train(
      "run",
      Arguments{"--max-steps", "8", "--adam-beta2", "0.9", "--gradient-dtype", "bf16"} + kResume);
  EXPECT_THAT(
      other.output,
      HasSubstr(
          "computes with other options than before: max_steps 6 -> 8, adam_beta2 0.95 -> 0.9, "
          "gradient_dtype \"fp32\" -> \"bf16\"\n"));
  const Outcome of_two = training.train(
      "two", Arguments{"--max-steps", "8", "--adam-beta2", "0.9", "--gradient-dtype", "bf16",
                       "--local-ranks", "2", "--resume", training.path("run/checkpoint-4")});
  EXPECT_THAT(of_two.output, HasSubstr("from here on a step has 4 samples; until now it had 2"));
  const Outcome elsewhere = training.train(
      "other", Arguments{"--max-steps", "6", "--resume", training.path("run/checkpoint-4/")});
  EXPECT_THAT(elsewhere.output, HasSubstr("max_steps 8 -> 6"));
}

// The number of steps that are left depends on what was done: it is the number of samples that are
// left, divided by the samples of a step from now on.
TEST(RunDirectories, GoOnForTheSamplesThatAreLeftOfTheirEpochs) {
  const TinyTraining training;
  training.directory().write("text.txt", generated_text(203 * 32 + 1, 7));  // 203 samples
  const Arguments epochs = {"--num-train-epochs",    "2", "--sequence-length", "32",
                            "--validation-fraction", "0", "--log-every",       "100"};
  training.train("first", epochs + Arguments{"--micro-batch-size", "2", "--stop-after-step", "60"});
  struct Resumed {
    const char* micro_batch_size;
    Arguments more;
    std::int64_t last_step;
  };
  // 240 samples of 406 are used up. There are two micro-batches a step.
  const auto runs = std::to_array<Resumed>({{"2", {}, 102},
                                            {"5", {}, 77},
                                            {"1", {}, 143},
                                            {"8", {}, 71},
                                            {"2", {"--local-ranks", "2"}, 81},
                                            {"8", {"--max-steps", "62"}, 62}});
  for (const auto& [micro_batch_size, more, last_step] : runs) {
    SCOPED_TRACE(micro_batch_size);
    std::filesystem::remove_all(training.path("run"));
    std::filesystem::copy(training.path("first"), training.path("run"),
                          std::filesystem::copy_options::recursive);
    const Arguments command =
        epochs + Arguments{"--micro-batch-size", micro_batch_size} + more + kResume;
    training.train("run", command);
    EXPECT_EQ(training.rows("run").back().step, last_step);
    EXPECT_THAT(training.train("run", command).output, HasSubstr("is complete"));
  }
}

// The bits of both forms are the same.
TEST(RunDirectories, OfACompleteRunAreTheSameWithTheOtherFormOfMasters) {
  const TinyTraining training;
  const Arguments steps = Arguments{"--max-steps", "3"} + kResume;
  training.train("run", steps + Arguments{"--master-weights", "split"});
  EXPECT_THAT(training.train("run", steps + Arguments{"--master-weights", "fp32"}).output,
              HasSubstr("is complete"));
}

// The file has as many tokens, but other ones, like another edition of it.
TEST(RunDirectories, AreNotGoneOnWithOnOtherData) {
  const TinyTraining training;
  training.train("run", {"--max-steps", "4", "--stop-after-step", "2"});
  training.directory().write("text.txt", generated_text(20'000, 8));
  const Outcome other =
      run_program(training.command("run", Arguments{"--max-steps", "4"} + kResume));
  EXPECT_EQ(other.code, 2) << other;
  EXPECT_THAT(other.errors, HasSubstr("made with other data"));
  training.directory().write("text.txt", generated_text(20'000, 7));
  training.train("run", Arguments{"--max-steps", "4"} + kResume);
}

TEST(RunDirectories, OfACompleteRunAreFoundSoByAllRanks) {
  const TinyTraining training;
  const Arguments steps = Arguments{"--max-steps", "3", "--local-ranks", "2"} + kResume;
  training.train("run", steps);
  EXPECT_THAT(training.train("run", steps).output, HasSubstr("is complete"));
}

// A scheduler must not take another run's result for this one's.
TEST(RunDirectories, OfACompleteRunAreNoResultOfAnother) {
  const TinyTraining training;
  training.train("run", Arguments{"--max-steps", "3"} + kResume);
  const Outcome other = run_program(training.command(
      "run", Arguments{"--max-steps", "3", "--seed", "99", "--learning-rate", "0.1"} + kResume));
  EXPECT_EQ(other.code, 2) << other;
  EXPECT_THAT(other.errors, HasSubstr("seed 1234 -> 99, learning_rate 0.003 -> 0.1"));
}

// The result is there, and all ranks hear why the run has not ended well.
TEST(RunDirectories, WhoseResultCannotBeNotedAreNamedByAllRanks) {
  const TinyTraining training;
  ProgramRun run(training.command("run", {"--max-steps", "1000", "--local-ranks", "2"}));
  ASSERT_TRUE(run.wait_for("\nstep ")) << run.wait();
  std::filesystem::create_directory(training.path("run/run.json.tmp"));
  const Outcome outcome = run.wait();
  EXPECT_EQ(outcome.code, 1) << outcome;
  EXPECT_THAT(outcome.errors, HasSubstr("run.json"));
  EXPECT_THAT(outcome.errors, Not(HasSubstr("different calls")));
  EXPECT_THAT(outcome.errors, Not(HasSubstr("as a checkpoint")));
  EXPECT_TRUE(training.directory().has("run/final/config.json"));
}

// If a crash in the middle of a save has moved a checkpoint aside, that is still the checkpoint, by
// whatever name it is asked for.
TEST(RunDirectories, AreClearedBeforeACheckpointOfTheirsIsOpened) {
  const TinyTraining training;
  training.train("run", {"--max-steps", "4", "--stop-after-step", "2"});
  const std::string checkpoint = training.path("run/checkpoint-2");
  std::filesystem::rename(checkpoint, checkpoint + ".old");
  const Outcome outcome = training.train("run", {"--max-steps", "4", "--resume", checkpoint});
  EXPECT_THAT(outcome.output, HasSubstr("resumed after step 2\n"));
}

// While more steps run, final has the result of fewer steps.
TEST(RunDirectories, OfACompleteRunTakeMoreSteps) {
  const TinyTraining training;
  const Arguments saves = Arguments{"--checkpoint-every", "2", "--lr-scheduler-type", "constant"};
  training.train("run", saves + Arguments{"--max-steps", "2"});
  const auto first = training.files("run", "final");
  const Arguments more = saves + Arguments{"--max-steps", "5"} + kResume;
  training.train("run", more + Arguments{"--stop-after-step", "3"});
  EXPECT_TRUE(training.files("run", "final") == first);
  const Outcome rest = training.train("run", more);
  EXPECT_THAT(rest.output, HasSubstr("resumed after step 3\n"));
  training.train("alone", saves + Arguments{"--max-steps", "5"});
  training.expect_same("run", "alone", "final");
}

TEST(RunDirectories, OfACompleteRunWithoutACheckpointTakeNoMoreSteps) {
  const TinyTraining training;
  training.train("run", {"--max-steps", "2"});
  const auto first = training.files("run", "final");
  const Outcome more =
      run_program(training.command("run", Arguments{"--max-steps", "3"} + kResume));
  EXPECT_EQ(more.code, 2) << more;
  EXPECT_THAT(more.errors, HasSubstr("no checkpoint to continue from"));
  EXPECT_THAT(more.errors, HasSubstr("--model " + training.path("run/final")));
  EXPECT_TRUE(training.files("run", "final") == first);
}

// The run had saved nothing, but somebody may want to see how far it had come.
TEST(RunDirectories, KeepTheRowsOfARunThatHasNoCheckpoint) {
  const TinyTraining training;
  ProgramRun run(training.command("run", {"--max-steps", "1000000"}));
  ASSERT_TRUE(run.wait_for("\nstep ", 3)) << run.wait();
  run.send(SIGKILL);
  run.wait();
  const std::string rows = training.directory().read("run/metrics.jsonl");
  training.train("run", {"--max-steps", "2"});
  EXPECT_EQ(training.directory().read("run/metrics.jsonl.before"), rows);
  EXPECT_EQ(training.rows("run").size(), 2U);
}

// Permissions may come back. Saved files that were removed would not.
TEST(RunDirectories, ThatCannotBeReadAreNotTakenForEmptyOnes) {
  const TinyTraining training;
  const Denied as_a_user = {.file_bytes_above = {}, .write_permission_of_root = true};
  training.train("run", {"--max-steps", "6", "--checkpoint-every", "2", "--stop-after-step", "4"});
  const auto rows = training.directory().read("run/metrics.jsonl");
  for (const char* name : {"run/checkpoint-4", "run/metrics.jsonl"}) {
    SCOPED_TRACE(name);
    const std::string path = training.path(name);
    const auto before = std::filesystem::status(path).permissions();
    std::filesystem::permissions(path, std::filesystem::perms::none);
    const Outcome resumed =
        run_program(training.command("run", Arguments{"--max-steps", "6"} + kResume), as_a_user);
    EXPECT_EQ(resumed.code, 1) << resumed;
    EXPECT_THAT(resumed.errors, HasSubstr(path));
    const Outcome fresh = run_program(training.command("run", {"--max-steps", "6"}), as_a_user);
    EXPECT_NE(fresh.code, 0) << fresh;
    EXPECT_THAT(fresh.errors, HasSubstr("checkpoint"));
    std::filesystem::permissions(path, before);
    EXPECT_EQ(training.directory().read("run/metrics.jsonl"), rows);
  }
  EXPECT_THAT(training.train("run", Arguments{"--max-steps", "6"} + kResume).output,
              HasSubstr("resumed after step 4\n"));
}

TEST(RunDirectories, AreNotMadeForARunThatCannotStart) {
  const TinyTraining training;
  for (const Arguments& more : {Arguments{"--init", "weights"},
                                Arguments{"--resume", training.path("none/checkpoint-2")}}) {
    const Outcome outcome =
        run_program(training.command("run", Arguments{"--max-steps", "2"} + more));
    EXPECT_EQ(outcome.code, 2) << outcome;
    EXPECT_FALSE(training.directory().has("run"));
  }
}

// TOML must be UTF-8.
TEST(RunDirectories, WhosePathCannotStandInTheConfigurationAreRefused) {
  const TinyTraining training;
  const Outcome outcome = run_program(training.command("caf\xe9", {"--max-steps", "2"}));
  EXPECT_EQ(outcome.code, 2) << outcome;
  EXPECT_THAT(outcome.errors, HasSubstr("--run-dir"));
  EXPECT_THAT(outcome.errors, HasSubstr("not UTF-8"));
  training.train("caf\xc3\xa9", {"--max-steps", "2"});
}

}  // namespace
}  // namespace terrace
