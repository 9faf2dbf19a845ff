#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <nlohmann/json.hpp>

#include "tests/e2e/tiny_training.h"

namespace terrace {
namespace {

using testing::HasSubstr;
using testing::Not;

// Expects a usage error, before anything is made.
void expect_usage_error(const TinyTraining& training, const Arguments& arguments,
                        const std::vector<std::string>& said) {
  const Outcome outcome =
      run_program(training.command("refused", Arguments{"--max-steps", "2"} + arguments));
  EXPECT_EQ(outcome.code, 2) << outcome;
  EXPECT_EQ(outcome.output, "");
  for (const std::string& text : said) EXPECT_THAT(outcome.errors, HasSubstr(text));
  EXPECT_FALSE(training.directory().has("refused"));
  EXPECT_TRUE(training.nvme_is_empty());
}

TEST(ExitCode, UnknownFlagsAndKeysAre2AndNameTheNearest) {
  const TinyTraining training;
  expect_usage_error(training, {"--learning-rat", "1"},
                     {"--learning-rat: unknown flag", "did you mean --learning-rate?"});
  expect_usage_error(training, {"--collective-timeout", "1e30"}, {"--collective-timeout", "1e9"});
  expect_usage_error(training, {"--nvme", training.path("nvme"), "--nvme", training.path("./nvme")},
                     {"names a directory twice"});
  // This directory is refused although the run would put nothing there.
  expect_usage_error(training, {"--nvme", training.path("none")},
                     {"--nvme " + training.path("none"), "No such file or directory"});
  expect_usage_error(training, {"--nvme", training.path("common.toml")}, {"not a directory"});
  expect_usage_error(training, {"--place-optimiser", "host"}, {"did you mean --place-optimizer?"});
  training.directory().write("common.toml", "model = \"nano\"\nmicro_batch_sise = 2\n");
  expect_usage_error(
      training, {},
      {"common.toml: unknown key micro_batch_sise", "did you mean micro_batch_size?"});
}

TEST(ExitCode, AnOptimizerThatIsNotBuiltIs2AndSaysSo) {
  const TinyTraining training;
  expect_usage_error(training, {"--optimizer", "muon"}, {"--optimizer muon", "not built"});
}

TEST(ExitCode, AGpuThatIsNotThereIs4AndSaysWhatIsMissing) {
  const TinyTraining training;
  // No machine has that many GPUs, so the result is the same with and without a driver.
  const Outcome outcome =
      run_program(training.command("refused", {"--max-steps", "2", "--device", "cuda:1000"}));
  EXPECT_EQ(outcome.code, 4) << outcome;
  EXPECT_THAT(outcome.errors, testing::AnyOf(HasSubstr("built without CUDA"), HasSubstr("GPU 1000"),
                                             HasSubstr("cudaGetDeviceCount")));
  EXPECT_FALSE(training.directory().has("refused"));
}

TEST(ExitCode, RanksOfTorchrunWithoutTheirGpusAre4) {
  const TinyTraining training;
  const std::vector<std::string> torchrun = {"env",
                                             "RANK=0",
                                             "WORLD_SIZE=2",
                                             "LOCAL_RANK=0",
                                             "LOCAL_WORLD_SIZE=1",
                                             "MASTER_PORT=29500",
                                             "MASTER_ADDR=127.0.0.1"};
  const Outcome outcome =
      ProgramRun(training.command("refused", {"--max-steps", "2", "--device", "cuda:1000"}), {},
                 torchrun)
          .wait();
  EXPECT_EQ(outcome.code, 4) << outcome;
  EXPECT_THAT(outcome.errors, testing::AnyOf(HasSubstr("built without CUDA"), HasSubstr("GPU 1000"),
                                             HasSubstr("cudaGetDeviceCount")));
}

TEST(ExitCode, ImpossibleSettingsAre2) {
  const TinyTraining training;
  expect_usage_error(training, {"--place-optimizer", "nvme"}, {"give --nvme DIR"});
  expect_usage_error(training, {"--place-parameters", "device"}, {"give --device-memory SIZE"});
  expect_usage_error(training, {"--stop-after-step", "3"}, {"--max-steps 2"});
  expect_usage_error(training, {"--precision", "bf17"}, {"bf16"});
  expect_usage_error(training, {"--device", "cuda:1", "--local-ranks", "2"},
                     {"--device cuda:1 with 2 ranks", "give --device cuda"});
  expect_usage_error(training, {"--local-ranks", "3", "--pipeline-parallel", "2"},
                     {"3 ranks", "2 pipeline stages"});
  expect_usage_error(
      training,
      {"--local-ranks", "2", "--pipeline-parallel", "2", "--micro-batch-order", "layer-major"},
      {"--micro-batch-order layer-major", "--pipeline-parallel"});
  expect_usage_error(training, {"--pipeline-schedule", "interleaved"}, {"--pipeline-parallel N"});
  expect_usage_error(training,
                     {"--local-ranks", "2", "--pipeline-parallel", "2", "--stage-speeds", "1"},
                     {"--stage-speeds has 1 numbers, but --pipeline-parallel is 2"});
  expect_usage_error(training, {"--stage-speeds", "1", "0"}, {"--stage-speeds 0"});
  expect_usage_error(training, {"--stage-speeds", "auto"}, {"only one pipeline stage"});
  expect_usage_error(training, {"--stage-speeds", "1", "auto"}, {"--stage-speeds auto"});
  expect_usage_error(training, {"--virtual-stages", "2"}, {"use the interleaved schedule"});
  const Arguments interleaved = {"--local-ranks",       "2",          "--pipeline-parallel", "2",
                                 "--pipeline-schedule", "interleaved"};
  expect_usage_error(training, interleaved + Arguments{"--gradient-accumulation-steps", "3"},
                     {"a multiple of the 2 stages, not 3", "gradient accumulation steps"});
  expect_usage_error(
      training,
      interleaved + Arguments{"--gradient-accumulation-steps", "2", "--virtual-stages", "5"},
      {"10 pieces", "fewer virtual stages"});
  const Arguments reduces = {"--gradient-reduction", "micro-batch"};
  expect_usage_error(training, reduces, {"one data-parallel rank"});
  const Arguments two = reduces + Arguments{"--local-ranks", "2"};
  expect_usage_error(training, two, {"ZeRO stage 1", "--zero-stage 2 or 3"});
  const Arguments stage_2 = two + Arguments{"--zero-stage", "2"};
  expect_usage_error(training, stage_2 + Arguments{"--micro-batch-order", "layer-major"},
                     {"layer-major"});
  expect_usage_error(training, stage_2 + Arguments{"--gradient-dtype", "bf16"},
                     {"--gradient-dtype bf16"});
  const Arguments hpz = {"--zero-partition", "hpz"};
  expect_usage_error(training, hpz, {"--zero-partition hpz", "ZeRO stage 0", "--zero-stage 3"});
  expect_usage_error(training, hpz + Arguments{"--zero-stage", "3"}, {"one data-parallel rank"});
  const Arguments four = hpz + Arguments{"--local-ranks", "4", "--zero-stage", "3"};
  expect_usage_error(training, four + Arguments{"--island-ranks", "3"},
                     {"4 data-parallel ranks", "islands of 3"});
  expect_usage_error(training, {"--island-ranks", "2"}, {"--island-ranks 2 without islands"});
  expect_usage_error(training,
                     {"--zero-partition", "hsdp", "--local-ranks", "2", "--zero-stage", "3",
                      "--gradient-reduction", "micro-batch"},
                     {"--zero-partition hsdp with --gradient-reduction micro-batch"});
  const Arguments coded = {"--gradient-wire-dtype", "int4"};
  expect_usage_error(training, coded, {"--gradient-wire-dtype int4", "one data-parallel rank"});
  expect_usage_error(training, coded + Arguments{"--local-ranks", "2", "--zero-stage", "0"},
                     {"--gradient-wire-dtype int4: with ZeRO stage 0", "use ZeRO stage 1, 2 or 3"});
  expect_usage_error(training, {"--parameter-wire-dtype", "int8", "--local-ranks", "2"},
                     {"--parameter-wire-dtype int8: with ZeRO stages 0 to 2", "use ZeRO stage 3"});
  expect_usage_error(training, {"--tensor-parallel", "2"}, {"1 ranks", "tensor-parallel ranks"});
  expect_usage_error(training, {"--local-ranks", "4", "--tensor-parallel", "4"},
                     {"--tensor-parallel 4", "2 key-value heads", "divides 2"});
  expect_usage_error(training, {"--sequence-parallel", "on"}, {"--tensor-parallel is 1"});
  expect_usage_error(training, {"--precision", "fp32", "--master-weights", "split"},
                     {"--master-weights split", "--precision bf16"});
  expect_usage_error(training, {"--precision", "fp16"},
                     {"--precision fp16", "GPUs", "--precision bf16"});
}

// The number of steps is known only when the data is.
TEST(ExitCode, StepsThatTheEpochsDoNotHaveAre2) {
  const TinyTraining training;
  const std::vector<Arguments> steps = {
      {"--stop-after-step", "500"}, {"--warmup-steps", "500"}, {"--trace-steps", "500:501"}};
  for (const Arguments& named : steps) {
    const Outcome outcome =
        run_program(training.command("refused", Arguments{"--num-train-epochs", "0.1"} + named));
    EXPECT_EQ(outcome.code, 2) << outcome;
    EXPECT_THAT(outcome.errors, HasSubstr(named.front() + " 500"));
    EXPECT_FALSE(training.directory().has("refused"));
  }
}

// ulimit -s also limits the stacks of threads. A library, or a buffer of ours, may need more.
TEST(ExitCode, OfARunWithASmallStackIs0) {
  const TinyTraining training;
  const Arguments run =
      training.nvme() +
      Arguments{"--max-steps", "2", "--place-optimizer", "nvme", "--local-ranks", "2"};
  for (const char* kib : {"32", "200"}) {
    const Outcome outcome =
        ProgramRun(training.command(kib, run), {},
                   {"sh", "-c", "ulimit -s " + std::string(kib) + "; exec \"$@\"", "sh"})
            .wait();
    EXPECT_EQ(outcome.code, 0) << outcome;
  }
  training.expect_same("32", "200", "final");
}

// Batch systems set ulimit -v. The budget is a part of the addresses that it leaves, and refusals
// name it.
TEST(ExitCode, OfARunWithFewAddressesIs0OrNamesTheLimit) {
  const TinyTraining training;
  const auto run_with = [&](const std::string& kib, const Arguments& more) {
    const Arguments run = {"train",  "--model",   training.path("model"),    "--init",
                           "random", "--data",    training.path("text.txt"), "--max-steps",
                           "2",      "--run-dir", training.path("run" + kib)};
    return ProgramRun(run + more, {}, {"sh", "-c", "ulimit -v " + kib + "; exec \"$@\"", "sh"})
        .wait();
  };
  // The first limit has room for the addresses that malloc reserves for each thread. The second has
  // less: there it depends on the moment whether another thread's reservation is in the way.
  const Outcome fits = run_with("1500000", {});
  EXPECT_EQ(fits.code, 0) << fits;
  EXPECT_THAT(fits.output, testing::ContainsRegex(" host\nbudget +[0-9.]+ MiB\n"));
  const Outcome tight = run_with("400000", {});
  if (tight.code != 0) {
    EXPECT_EQ(tight.code, 3) << tight;
    EXPECT_THAT(tight.errors, HasSubstr("ulimit -v"));
  }
  const Outcome refused =
      run_with("300000", {"--micro-batch-size", "1024", "--sequence-length", "512"});
  EXPECT_EQ(refused.code, 3) << refused;
  EXPECT_THAT(refused.errors,
              testing::ContainsRegex("raise --host-memory to .* or more .no more than .* can be "
                                     "used here, the address-space limit .ulimit -v.: raise that"));
}

TEST(ExitCode, AFinishedRunIsNotTrainedOver) {
  const TinyTraining training;
  training.train("run", {"--max-steps", "2"});
  const auto result = training.files("run", "final");
  const auto rows = training.rows("run");
  for (const char* resume : {"none", "auto"}) {
    const Outcome outcome =
        run_program(training.command("run", {"--max-steps", "3", "--resume", resume}));
    EXPECT_EQ(outcome.code, 2) << outcome;
    EXPECT_THAT(outcome.errors, HasSubstr("final"));
    EXPECT_THAT(outcome.errors, HasSubstr("--run-dir"));
  }
  EXPECT_EQ(training.files("run", "final"), result);
  EXPECT_EQ(training.rows("run"), rows);
}

// Runs several times, as the lanes are at different places each time the step fails.
TEST(ExitCode, NotANumberIs6AndKeepsTheLastGoodCheckpoint) {
  const TinyTraining training;
  const Arguments steps = {"--max-steps", "12", "--checkpoint-every", "3"};
  training.train("run", steps + Arguments{"--stop-after-step", "6"});
  const auto saved = training.files("run", "checkpoint-6");
  const Arguments diverging =
      steps + training.nvme() +
      Arguments{
          "--resume",          "auto", "--learning-rate", "1e38", "--min-learning-rate", "1e38",
          "--place-optimizer", "nvme"};
  for (int i = 0; i < 10; ++i) {
    const Outcome outcome = run_program(training.command("run", diverging));
    ASSERT_EQ(outcome.code, 6) << outcome;
    EXPECT_THAT(outcome.errors, HasSubstr("loss"));
    EXPECT_TRUE(training.nvme_is_empty());
    EXPECT_TRUE(training.files("run", "checkpoint-6") == saved);
    EXPECT_FALSE(training.directory().has("run/final"));
  }
  // No checkpoint holds the state after the failed step.
  const Outcome good = training.train("run", steps + Arguments{"--resume", "auto"});
  EXPECT_THAT(good.output, HasSubstr("resumed after step 6\n"));
}

// The second step after the resume gives no number. The row of the first has no room, if the run
// gets as far as writing it.
TEST(ExitCode, WhatEndsAStepIsToldAlsoWhereTheRowBeforeItIsLost) {
  const TinyTraining training;
  const Arguments steps = {"--max-steps", "30"};
  training.train("run", steps + Arguments{"--stop-after-step", "20"});
  const Arguments diverging = {"--resume", "auto", "--learning-rate", "1e38", "--min-learning-rate",
                               "1e38"};
  ProgramRun run(training.command("run", steps + diverging));
  run.limit_file_size(std::filesystem::file_size(training.path("run/metrics.jsonl")) + 100);
  const Outcome outcome = run.wait();
  EXPECT_EQ(outcome.code, 6) << outcome;
  EXPECT_THAT(outcome.errors, HasSubstr("step 22: loss"));
}

TEST(ExitCode, OutputThatIsNoTerminalHasNoCarriageReturns) {
  const TinyTraining training;
  for (const std::string progress : {"auto", "on", "off"}) {
    const Outcome outcome =
        training.train(progress, {"--max-steps", "6", "--progress", progress, "--eval-every", "2"});
    EXPECT_THAT(outcome.output + outcome.errors, Not(HasSubstr("\r"))) << progress;
    EXPECT_THAT(outcome.output + outcome.errors, Not(HasSubstr("\x1b"))) << progress;
    EXPECT_EQ(outcome.output.find("progress: ") != std::string::npos, progress == "on");
  }
}

TEST(ExitCode, LogEverySkipsLinesAndNotRows) {
  const TinyTraining training;
  const Outcome outcome = training.train("run", {"--max-steps", "9", "--log-every", "4"});
  for (const char* said : {"\nstep 4/9", "\nstep 8/9", "\nstep 9/9"}) {
    EXPECT_THAT(outcome.output, HasSubstr(said));
  }
  EXPECT_THAT(outcome.output, Not(HasSubstr("\nstep 3/9")));
  EXPECT_EQ(training.rows("run").size(), 9U);
}

TEST(ExitCode, DoctorWritesOneDocument) {
  const TemporaryDirectory directory;
  const Outcome outcome = run_program({"doctor", "--json", "--nvme", directory.path()});
  EXPECT_EQ(outcome.code, 0) << outcome;
  const auto document = nlohmann::json::parse(outcome.output, nullptr, false);
  ASSERT_TRUE(document.is_object()) << outcome;
  EXPECT_EQ(document.value("schema", ""), "terrace.doctor/1");
  EXPECT_TRUE(document.contains("version"));
  EXPECT_TRUE(document.contains("host"));
  EXPECT_FALSE(document.value("results", nlohmann::json::array()).empty());
}

TEST(ExitCode, ASwitchCanBeTurnedOffAgain) {
  const TinyTraining training;
  training.directory().write("common.toml",
                             training.directory().read("common.toml") + "dry_run = true\n");
  training.train("dry", {"--max-steps", "1"});
  EXPECT_FALSE(training.directory().has("dry"));
  training.train("run", {"--max-steps", "1", "--dry-run=off"});
  EXPECT_TRUE(training.directory().has("run/final"));
  expect_usage_error(training, {"--dry-run=nearly"}, {"--dry-run", "off, on"});
}

// The reader of the output may go away.
TEST(ExitCode, AClosedPipeDoesNotEndATraining) {
  const TinyTraining training;
  const Outcome outcome = run_program(training.command("run", {"--max-steps", "3"}),
                                      {.file_bytes_above = {}, .reader_of_output = true});
  EXPECT_EQ(outcome.signal, 0) << outcome;
  EXPECT_TRUE(training.directory().has("run/final"));
}

// The effective configuration can be run again, and gives the same bits.
TEST(ExitCode, ConfigOfARunCanBeRunAgain) {
  const TinyTraining training;
  training.train("first", {"--max-steps", "3", "--recompute", "full", "--seed", "77"});
  const Outcome outcome = run_program({"train", "--config", training.path("first/config.toml"),
                                       "--run-dir", training.path("second")});
  ASSERT_EQ(outcome.code, 0) << outcome;
  training.expect_same("second", "first", "final");
  const auto run = nlohmann::json::parse(training.directory().read("second/run.json"));
  for (const char* key : {"version", "host", "command_line", "program"}) {
    EXPECT_TRUE(run.contains(key)) << key;
  }
}

}  // namespace
}  // namespace terrace
