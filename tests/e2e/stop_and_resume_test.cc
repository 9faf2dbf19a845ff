#include <fmt/format.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <thread>

#include "tests/e2e/checkout_paths.h"
#include "tests/e2e/tiny_training.h"
#include "tests/sanitized.h"

namespace terrace {
namespace {

// A run of 16 steps that was left alone, and the same run stopped after 10 of them, with the flags
// `first`.
class StopAndResume : public testing::TestWithParam<const char*> {
 protected:
  void stop(const Arguments& first) {
    training_.train("alone", common_ + Arguments{"--eval-every", "4"});
    const Outcome outcome = training_.train(
        "run", common_ + first + Arguments{"--eval-every", "4", "--stop-after-step", "10"});
    EXPECT_NE(outcome.output.find("saved " + training_.path("run/checkpoint-10")),
              std::string::npos)
        << outcome;
    EXPECT_FALSE(training_.directory().has("run/final"));
    EXPECT_EQ(training_.rows("run").size(), 10U);
  }

  void resume(const Arguments& second) {
    const Outcome outcome = training_.train(
        "run", common_ + second + Arguments{"--eval-every", "4", "--resume", "auto"});
    EXPECT_NE(outcome.output.find("resumed after step 10\n"), std::string::npos) << outcome;
    training_.expect_same("run", "alone", "final");
    const std::vector<MetricsRow> rows = training_.rows("run");
    const std::vector<MetricsRow> expected = training_.rows("alone");
    ASSERT_EQ(rows.size(), 16U);
    ASSERT_EQ(expected.size(), 16U);
    for (std::size_t i = 0; i < rows.size(); ++i) {
      EXPECT_EQ(rows[i].step, static_cast<std::int64_t>(i) + 1);
      for (const char* column : {"learning_rate", "validation_loss"}) {
        EXPECT_EQ(rows[i].columns.count(column), expected[i].columns.count(column)) << rows[i];
        if (rows[i].columns.count(column) == 0) continue;
        EXPECT_EQ(rows[i].columns.at(column), expected[i].columns.at(column)) << rows[i];
      }
    }
    EXPECT_TRUE(training_.nvme_is_empty());
  }

  const TinyTraining training_;
  Arguments common_ = {"--max-steps", "16", "--precision", GetParam()};
};

TEST_P(StopAndResume, GoesOnInTheSameFile) {
  stop({});
  resume({});
}

TEST_P(StopAndResume, GoesOnWithOtherPlacements) {
  stop(training_.nvme() + Arguments{"--device-memory", "64MiB", "--place-parameters", "device",
                                    "--place-optimizer", "nvme", "--recompute", "full",
                                    "--micro-batch-order", "layer-major"});
  resume(training_.nvme() + Arguments{"--place-parameters", "nvme", "--place-gradients", "nvme",
                                      "--place-optimizer", "host", "--threads", "1", "--recompute",
                                      "none"});
}

TEST_P(StopAndResume, GoesOnWithNarrowMoments) {
  for (const char* type : {"bf16", "int8"}) {
    SCOPED_TRACE(type);
    std::filesystem::remove_all(training_.path("run"));
    std::filesystem::remove_all(training_.path("alone"));
    common_ = {"--max-steps", "16", "--precision", GetParam(), "--optimizer-state-dtype", type};
    stop(training_.nvme() + Arguments{"--place-optimizer", "nvme"});
    resume({"--threads", "1"});
  }
}

class StopAndResumeMasters : public StopAndResume {};

TEST_P(StopAndResumeMasters, GoesOnWithTheOtherFormOfMasters) {
  for (const char* first : {"split", "fp32"}) {
    SCOPED_TRACE(first);
    std::filesystem::remove_all(training_.path("run"));
    std::filesystem::remove_all(training_.path("alone"));
    const char* second = first == std::string("split") ? "fp32" : "split";
    stop({"--master-weights", first});
    resume({"--master-weights", second});
  }
}

INSTANTIATE_TEST_SUITE_P(Bf16, StopAndResumeMasters, testing::Values("bf16"),
                         [](const auto& instance) { return std::string(instance.param); });
INSTANTIATE_TEST_SUITE_P(Precisions, StopAndResume, testing::Values("bf16", "fp32"),
                         [](const auto& instance) { return std::string(instance.param); });

// The bytes that are saved do not depend on where the state lived.
TEST(Checkpoints, HaveTheSameBytesFromEveryTier) {
  const TinyTraining training;
  const Arguments steps = {"--max-steps", "9", "--stop-after-step", "4"};
  training.train("plain", steps);
  training.train("tiers", steps + training.nvme() +
                              Arguments{"--device-memory", "64MiB", "--place-parameters", "host",
                                        "--place-optimizer", "nvme"});
  training.expect_same("tiers", "plain", "checkpoint-4");
}

TEST(Checkpoints, KeepLastKeepsTheLatest) {
  const TinyTraining training;
  training.train("run", {"--max-steps", "9", "--checkpoint-every", "2", "--keep-last", "2"});
  for (int step = 1; step <= 9; ++step) {
    const std::string name = "run/checkpoint-" + std::to_string(step);
    EXPECT_EQ(training.directory().has(name), step == 6 || step == 8) << name;
  }
}

// A checkpoint that is named is used, and later rows are removed.
TEST(Checkpoints, ResumeFromANamedOne) {
  const TinyTraining training;
  const Arguments steps = {"--max-steps", "9", "--checkpoint-every", "3"};
  training.train("run", steps);
  const std::vector<MetricsRow> rows = training.rows("run");
  const auto files = training.files("run", "final");
  const Outcome outcome = training.train(
      "run", steps + Arguments{"--resume", training.path("run/checkpoint-3"), "--overwrite-later"});
  EXPECT_NE(outcome.output.find("resumed after step 3\n"), std::string::npos) << outcome;
  EXPECT_EQ(outcome.output.find("--device"), std::string::npos) << outcome;
  EXPECT_NE(training.directory().read("run/checkpoint-3/manifest.json").find(R"("device": "cpu")"),
            std::string::npos);
  EXPECT_EQ(training.rows("run"), rows);
  EXPECT_TRUE(training.files("run", "final") == files);
  // A shell completes the name like this.
  training.train("run", steps + Arguments{"--resume", training.path("run/checkpoint-3/"),
                                          "--overwrite-later"});
  EXPECT_EQ(training.rows("run"), rows);
}

TEST(Checkpoints, AreNotTakenForAModelsWeights) {
  const TinyTraining training;
  training.train("run", {"--max-steps", "2", "--stop-after-step", "1"});
  const Arguments model = {"--max-steps", "2", "--model", training.path("run/checkpoint-1")};
  const Outcome outcome =
      run_program(training.command("other", model + Arguments{"--init", "auto"}));
  EXPECT_EQ(outcome.code, 2) << outcome;
  for (const char* text : {"checkpoint-1 is a checkpoint", "--resume", "final"}) {
    EXPECT_NE(outcome.errors.find(text), std::string::npos) << outcome;
  }
  const Outcome random = training.train("other", model + Arguments{"--init", "random"});
  EXPECT_NE(random.output.find("starts from random weights"), std::string::npos) << random;
}

class StopSignals : public testing::TestWithParam<int> {};

// The run is far too long to end by itself, so the signal always comes in the middle.
TEST_P(StopSignals, SaveAndSay75AndGoOnBitExactly) {
  const TinyTraining training;
  const Arguments common =
      training.nvme() + Arguments{"--max-steps", "1000000", "--place-optimizer", "nvme"};
  ProgramRun run(training.command("run", common));
  ASSERT_TRUE(run.wait_for("\nstep ", 3)) << run.wait();
  run.send(GetParam());
  const Outcome outcome = run.wait();
  EXPECT_EQ(outcome.code, 75) << outcome;
  EXPECT_TRUE(training.nvme_is_empty());
  const auto saved_at = training.rows("run").back().step;
  EXPECT_TRUE(
      training.directory().has("run/checkpoint-" + std::to_string(saved_at) + "/manifest.json"));
  const std::string last = std::to_string(saved_at + 5);
  const Arguments stop = common + Arguments{"--stop-after-step", last};
  training.train("run", stop + Arguments{"--resume", "auto"});
  training.train("alone", stop);
  training.expect_same("run", "alone", "checkpoint-" + last);
}

INSTANTIATE_TEST_SUITE_P(SaveAndStop, StopSignals,
                         testing::Values(SIGTERM, SIGUSR1, SIGHUP, SIGINT),
                         [](const auto& instance) {
                           return fmt::format("SIG{}", sigabbrev_np(instance.param));
                         });

// The command that the console names goes on, from another directory too.
TEST(Signals, AreAnsweredWithTheCommandThatGoesOn) {
  const TinyTraining training;
  ProgramRun run(training.command("run", {"--max-steps", "1000000"}));
  ASSERT_TRUE(run.wait_for("\nstep ", 3)) << run.wait();
  run.send(SIGINT);
  const Outcome outcome = run.wait();
  EXPECT_EQ(outcome.code, 75) << outcome;
  EXPECT_NE(outcome.errors.find("interrupt again to end at once"), std::string::npos) << outcome;
  const auto step = training.rows("run").back().step;
  const std::string told =
      fmt::format("stopped by SIGINT after step {} of 1000000; to go on: ", step);
  const std::size_t at = outcome.output.find(told);
  ASSERT_NE(at, std::string::npos) << outcome;
  const std::size_t begin = at + told.size();
  const std::string line = outcome.output.substr(begin, outcome.output.find('\n', begin) - begin);
  const std::string more = fmt::format(" --stop-after-step {}", step + 2);
  const Outcome resumed = ProgramRun(Command{{"env", "-C", "/", "bash", "-c", line + more}}).wait();
  EXPECT_EQ(resumed.code, 0) << resumed;
  EXPECT_EQ(training.rows("run").back().step, step + 2);
}

// A step of this many sequences takes so long that both signals come within it.
constexpr const char* kLongStepSequences = kSanitized ? "200" : "4000";

TEST(Signals, ASecondInterruptEndsTheRunAtOnce) {
  const TinyTraining training;
  ProgramRun run(training.command("run", {"--max-steps", "1000", "--micro-batch-size",
                                          kLongStepSequences, "--gradient-accumulation-steps", "2",
                                          "--host-memory", "4GiB", "--validation-fraction", "0"}));
  ASSERT_TRUE(run.wait_for("\nstep ", 1)) << run.wait();
  run.send(SIGINT);
  std::this_thread::sleep_for(std::chrono::milliseconds(400));
  run.send(SIGINT);
  EXPECT_EQ(run.wait().signal, SIGINT);
  EXPECT_EQ(training.last_committed("run"), 0);
}

// This happens if a launcher passes on a signal that the terminal has also sent to the run.
TEST(Signals, AnInterruptThatComesTwiceAtOnceIsOne) {
  const TinyTraining training;
  ProgramRun run(training.command("run", {"--max-steps", "1000000"}));
  ASSERT_TRUE(run.wait_for("\nstep ", 1)) << run.wait();
  run.send(SIGINT);
  std::this_thread::sleep_for(std::chrono::milliseconds(1));
  run.send(SIGINT);
  EXPECT_EQ(run.wait().code, 75);
  EXPECT_LT(0, training.last_committed("run"));
}

// nohup, and a shell that starts a job in the background, leave signals ignored.
TEST(Signals, ThatWereIgnoredAtTheStartStayIgnored) {
  for (const int number : {SIGHUP, SIGINT, SIGTERM}) {
    const TinyTraining training;
    const std::string trap = fmt::format("trap '' {}; exec \"$0\" \"$@\"", number);
    ProgramRun run(training.command("run", {"--max-steps", "1000000"}), {}, {"bash", "-c", trap});
    ASSERT_TRUE(run.wait_for("\nstep ", 1)) << run.wait();
    run.send(number);
    const auto seen = training.rows("run").size();
    ASSERT_TRUE(run.wait_for("\nstep ", static_cast<int>(seen) + 3)) << run.wait();
    run.send(SIGUSR1);
    EXPECT_EQ(run.wait().code, 75);
  }
}

// The terminal of script(1) closes when script dies. The run then gets SIGHUP, and whatever it
// prints from then on goes nowhere.
TEST(Signals, AClosedTerminalSavesTheRun) {
  const TinyTraining training;
  Arguments words = training.command("run", {"--max-steps", "1000000"});
  for (std::string& word : words) word = "'" + word + "'";
  const std::string command = fmt::format("exec '{}' {}", program_path(), fmt::join(words, " "));
  ProgramRun terminal(Command{{"script", "-qec", command, "/dev/null"}});
  ASSERT_TRUE(terminal.wait_until([&] {
    return training.directory().has("run/metrics.jsonl") && training.rows("run").size() > 2;
  })) << terminal.wait();
  terminal.send(SIGKILL);
  EXPECT_EQ(terminal.wait().signal, SIGKILL);
  const auto has_saved = [&] { return training.last_committed("run") > 0; };
  for (int i = 0; i < 6000 && !has_saved(); ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  ASSERT_TRUE(has_saved());
  const int saved = training.last_committed("run");
  // The lock of the run directory is free once the run has ended.
  training.train("run", {"--max-steps", "1000000", "--resume", "auto", "--stop-after-step",
                         std::to_string(saved + 1)});
}

// A checkpoint that is due at the step of the signal is not replaced by itself.
TEST(Signals, SaveAStepOnce) {
  const TinyTraining training;
  const Arguments common = {"--max-steps", "1000000",     "--checkpoint-every",
                            "1",           "--keep-last", "1"};
  ProgramRun run(training.command("run", common));
  ASSERT_TRUE(run.wait_for("\nsaved ", 2)) << run.wait();
  run.send(SIGTERM);
  const Outcome outcome = run.wait();
  EXPECT_EQ(outcome.code, 75) << outcome;
  const std::string saved = "\nsaved " + training.path("run/checkpoint-") +
                            std::to_string(training.rows("run").back().step) + "\n";
  EXPECT_NE(outcome.output.find(saved), std::string::npos) << outcome;
  EXPECT_EQ(outcome.output.find(saved), outcome.output.rfind(saved)) << outcome;
}

// The evaluation alone would take longer than a run may. The pause lets the first step end. A
// signal that comes too early finds the run in that step, and the test passes too.
TEST(Signals, EndAnEvaluation) {
  const TinyTraining training;
  const std::string text =
      training.directory().write("long.txt", generated_text(std::size_t{1} << 27, 8));
  ProgramRun run(training.command("run", {"--max-steps", "1000000", "--validation-data", text,
                                          "--eval-every", "1", "--eval-samples", "0"}));
  ASSERT_TRUE(run.wait_for("starts from random weights")) << run.wait();
  std::this_thread::sleep_for(std::chrono::seconds(1));
  run.send(SIGTERM);
  const Outcome outcome = run.wait();
  EXPECT_EQ(outcome.code, 75) << outcome;
  EXPECT_TRUE(training.directory().has("run/checkpoint-1/manifest.json"));
}

// The evaluation of the last step belongs to the result: without it the run is not complete. The
// first evaluation covers all samples, so that it takes long. The one that makes up for it is like
// the reference's.
TEST(Signals, AnEvaluationThatWasCutShortIsMadeUpFor) {
  const TinyTraining training;
  const std::string text =
      training.directory().write("long.txt", generated_text(std::size_t{1} << 27, 8));
  const Arguments common = {"--max-steps", "3", "--validation-data", text, "--eval-samples"};
  ProgramRun run(training.command("run", common + Arguments{"0"}));
  ASSERT_TRUE(run.wait_until([&] {
    return training.directory().has("run/metrics.jsonl") && training.rows("run").size() == 2;
  })) << run.wait();
  std::this_thread::sleep_for(std::chrono::seconds(1));
  run.send(SIGTERM);
  const Outcome outcome = run.wait();
  EXPECT_EQ(outcome.code, 75) << outcome;
  EXPECT_FALSE(training.directory().has("run/final"));
  ASSERT_EQ(training.rows("run").size(), 3U);
  EXPECT_EQ(training.rows("run").back().columns.count("validation_loss"), 0U);
  training.train("run", common + Arguments{"8", "--resume", "auto"});
  training.train("alone", common + Arguments{"8"});
  training.expect_same("run", "alone", "final");
  EXPECT_EQ(training.rows("run").back().columns.at("validation_loss"),
            training.rows("alone").back().columns.at("validation_loss"));
}

// Planning this number of micro-batches takes longer than a run may.
TEST(Signals, BeforeTheFirstStepEndTheRunAtOnce) {
  const TinyTraining training;
  ProgramRun run(
      training.command("run", {"--max-steps", "1", "--gradient-accumulation-steps", "200000"}));
  ASSERT_TRUE(run.wait_until([&] { return run.handles(SIGTERM); })) << run.wait();
  std::this_thread::sleep_for(std::chrono::milliseconds(100));
  run.send(SIGTERM);
  const Outcome outcome = run.wait();
  EXPECT_EQ(outcome.code, 75) << outcome;
  EXPECT_NE(outcome.errors.find("before its first step"), std::string::npos) << outcome;
  EXPECT_FALSE(training.directory().has("run"));
}

// The directory that a run has chosen for itself is written in its configuration.
TEST(Resume, GoesOnFromTheConfigurationOfARunWithoutANamedDirectory) {
  const TinyTraining training;
  Arguments command = training.command("run", {"--max-steps", "4", "--stop-after-step", "2"});
  const auto flag = std::ranges::find(command, "--run-dir");
  ASSERT_NE(flag, command.end());
  command.erase(flag, flag + 2);
  const Arguments in_directory = {"env", "-C", training.path()};
  const Outcome outcome = ProgramRun(command, {}, in_directory).wait();
  ASSERT_EQ(outcome.code, 0) << outcome;
  std::vector<std::string> chosen;
  for (const auto& entry : std::filesystem::directory_iterator(training.path("runs"))) {
    chosen.push_back(entry.path().string());
  }
  ASSERT_EQ(chosen.size(), 1U);
  const Outcome resumed = ProgramRun({"train", "--config", chosen.front() + "/config.toml",
                                      "--resume", "auto", "--stop-after-step", "0"},
                                     {}, in_directory)
                              .wait();
  EXPECT_EQ(resumed.code, 0) << resumed;
  EXPECT_TRUE(std::filesystem::exists(chosen.front() + "/final/config.json"));
}

// Paths in config.toml are relative to the directory where the run was started.
TEST(Resume, GoesOnFromAConfigurationWithRelativePathsInAnotherDirectory) {
  const TinyTraining training;
  const std::vector<std::string> there = {"env", "-C", training.path()};
  const Arguments started = {"train",    "--model",
                             "model",    "--init",
                             "random",   "--data",
                             "text.txt", "--device",
                             "cpu",      "--nvme",
                             "nvme",     "--max-steps",
                             "4",        "--run-dir",
                             "run",      "--place-optimizer",
                             "nvme",     "--stop-after-step",
                             "2"};
  const Outcome first = ProgramRun(started, {}, there).wait();
  ASSERT_EQ(first.code, 0) << first;
  const Outcome resumed = ProgramRun({"train", "--config", training.path("run/config.toml"),
                                      "--resume", "auto", "--stop-after-step", "0"},
                                     {}, {"env", "-C", "/"})
                              .wait();
  EXPECT_EQ(resumed.code, 0) << resumed;
  EXPECT_EQ(resumed.output.find("computes with other options than before"), std::string::npos)
      << resumed;
  EXPECT_TRUE(training.directory().has("run/final/config.json"));
}

TEST(Resume, FromAnEarlierCheckpointKeepsTheLaterOnesUnlessAllowed) {
  const TinyTraining training;
  const Arguments common = {"--max-steps", "6", "--checkpoint-every", "2"};
  training.train("run", common);
  const Arguments back = common + Arguments{"--resume", training.path("run/checkpoint-2")};
  const Outcome refused = run_program(training.command("run", back));
  EXPECT_EQ(refused.code, 2) << refused;
  EXPECT_NE(refused.errors.find("checkpoint-4, checkpoint-6, final"), std::string::npos) << refused;
  EXPECT_NE(refused.errors.find("--overwrite-later"), std::string::npos) << refused;
  EXPECT_TRUE(training.directory().has("run/checkpoint-6/manifest.json"));
  EXPECT_EQ(training.rows("run").size(), 6U);
  training.train("fork", back);  // a directory of its own
  training.train("run", back + Arguments{"--overwrite-later", "--stop-after-step", "4"});
  EXPECT_EQ(training.last_committed("run"), 4);
  EXPECT_EQ(training.rows("run").size(), 4U);
}

// Bits of matrix products depend on the instruction set.
TEST(Resume, SaysThatOtherArithmeticComputesTheNextSteps) {
  const TinyTraining training;
  const Arguments common = {"--max-steps", "4"};
  training.train("run", common + Arguments{"--stop-after-step", "2"});
  const Arguments on = common + Arguments{"--resume", "auto"};
  const Outcome other =
      ProgramRun(training.command("run", on), {}, {"env", "DNNL_MAX_CPU_ISA=SSE41"}).wait();
  EXPECT_EQ(other.code, 0) << other;
  EXPECT_NE(other.output.find("with sse41: the results may differ in their last bits"),
            std::string::npos)
      << other;
  training.train("same", common + Arguments{"--stop-after-step", "2"});
  const Outcome same = training.train("same", on);
  EXPECT_EQ(same.output.find("may differ in their last bits"), std::string::npos) << same;
}

}  // namespace
}  // namespace terrace
