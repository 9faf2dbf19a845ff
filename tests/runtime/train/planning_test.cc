#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "base/log.h"
#include "runtime/config/train_config.h"
#include "runtime/engine/model_runtime.h"
#include "runtime/train/trainer.h"
#include "tests/runtime/temporary_directory.h"

// Tests that the console is told about everything that can take long: when it begins, how far it
// has come, and when it ends.
namespace terrace {
namespace {

class RecordingConsole final : public TrainConsole {
 public:
  void opened(const std::string& /*run_dir*/) override {}
  void say(const std::string& text) override { events.push_back(text.substr(0, 5)); }
  void begin_phase(const std::string& what) override { events.push_back("begin " + what); }
  void advance_phase(double fraction) override { fraction_ = fraction; }
  void end_phase() override {
    events.push_back(fraction_ < 0 ? "end" : fmt::format("end at {:.2f}", fraction_));
    fraction_ = -1;
  }
  void step(const StepProgress& progress) override {
    events.push_back(fmt::format("step {}", progress.step));
  }

  std::vector<std::string> events;

 private:
  double fraction_ = -1;
};

std::vector<std::string> events_of(const std::vector<std::string>& more) {
  const TemporaryDirectory directory;
  std::vector<std::string> arguments = {
      "--model",           "nano", "--data",    directory.write("text.txt", std::string(2000, 'a')),
      "--sequence-length", "32",   "--run-dir", directory.path("run")};
  arguments.insert(arguments.end(), more.begin(), more.end());
  if (!std::ranges::count(more, "--max-steps")) {
    arguments.insert(arguments.end(), {"--max-steps", "1"});
  }
  TrainCommand command;
  command.options = parse_train_options(arguments);
  RecordingConsole console;
  SilentLog log;
  StopRequest stop;
  try {
    train(command, stop, console, log);
  } catch (const OutOfMemory&) {
    console.events.emplace_back("refused");
  }
  return console.events;
}

TEST(TrainPlanning, IsToldToTheConsole) {
  const std::vector<std::string> dry = {
      "begin planning the step", "end", "nano:", "predi", "data:", "saves"};
  EXPECT_EQ(events_of({"--dry-run"}), dry);
  // The console is told about planning only once, no matter how many ranks plan.
  EXPECT_EQ(events_of({"--dry-run", "--local-ranks", "2", "--pipeline-parallel", "2"}), dry);
  std::vector<std::string> run = events_of({});
  ASSERT_GE(run.size(), dry.size());
  run.resize(dry.size());
  EXPECT_EQ(run, dry);
}

// A dry run does not start a thread for each rank.
TEST(TrainPlanning, PlansMoreRanksThanRunAsThreads) {
  const std::vector<std::string> dry = {
      "begin planning the step", "end", "nano:", "predi", "data:", "saves"};
  EXPECT_EQ(events_of({"--dry-run", "--local-ranks", "512", "--zero-stage", "3"}), dry);
  EXPECT_THROW(events_of({"--local-ranks", "512"}), ConfigError);
}

// In a dry run one data-parallel rank stands for all of them, so their plans must have equal sizes.
TEST(TrainPlanning, FindsDataParallelRanksOfOneSize) {
  for (int stage = 0; stage <= 3; ++stage) {
    ModelRuntimeOptions options;
    options.model = load_model_config("nano");
    options.batch = {2, 64};
    options.threads = 2;
    options.zero_stage = stage;
    options.ranks.shape.data = 3;
    options.placement.has_nvme = true;
    options.budgets.at(static_cast<std::size_t>(Tier::kHost)) = std::size_t{9} << 20;
    const TierPlan first = plan_model(options);
    for (options.ranks.position.data = 1; options.ranks.position.data < 3;
         ++options.ranks.position.data) {
      const TierPlan other = plan_model(options);
      EXPECT_EQ(other.training.program.use, first.training.program.use);
      EXPECT_EQ(other.evaluation.use, first.evaluation.use);
      EXPECT_EQ(other.training.program.ops.size(), first.training.program.ops.size());
      for (std::size_t l = 0; l < kLaneCount; ++l) {
        const auto lane = static_cast<Lane>(l);
        EXPECT_EQ(lane_bytes(other.training.program, lane),
                  lane_bytes(first.training.program, lane));
      }
    }
  }
}

TEST(TrainPlanning, EndsAlsoWhereTheStepDoesNotFit) {
  const std::vector<std::string> refused = {"begin planning the step", "end", "refused"};
  EXPECT_EQ(events_of({"--device-memory", "4KiB"}), refused);
  EXPECT_EQ(events_of({"--device-memory", "4KiB", "--dry-run"}), refused);
}

// With --json, only the document is written to standard output.
TEST(TrainPlanning, IsNotToldBesideADocument) {
  EXPECT_EQ(events_of({"--dry-run", "--json"}), std::vector<std::string>{"{\n  \""});
  const std::vector<std::string> refused = {"{\n  \"", "refused"};
  EXPECT_EQ(events_of({"--dry-run", "--json", "--device-memory", "4KiB"}), refused);
}

// Every phase whose length is known is reported as complete at its end.
TEST(TrainPhases, AreToldToTheConsole) {
  const std::vector<std::string> events = events_of({"--validation-fraction", "0.1"});
  const auto phase_after = [&](const std::string& what) {
    const auto found = std::ranges::find(events, "begin " + what);
    return found == events.end() ? "not told: " + what : *(found + 1);
  };
  for (const char* const what :
       {"initialising the state", "evaluating 7 samples", "saving final"}) {
    EXPECT_EQ(phase_after(what), "end at 1.00");
  }
  const std::vector<std::string> stopped =
      events_of({"--max-steps", "2", "--stop-after-step", "1"});
  EXPECT_THAT(stopped, testing::IsSupersetOf({"begin saving checkpoint-1", "end at 1.00"}));
}

}  // namespace
}  // namespace terrace
