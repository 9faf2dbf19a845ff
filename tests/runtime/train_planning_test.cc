#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "base/log.h"
#include "runtime/config/train_config.h"
#include "runtime/train/trainer.h"
#include "tests/runtime/temporary_directory.h"

// The console is told when the planning of a step begins and ends.
namespace terrace {
namespace {

class RecordingConsole final : public TrainConsole {
 public:
  void say(const std::string& text) override { events.push_back(text.substr(0, 5)); }
  void begin_planning() override { events.emplace_back("begin"); }
  void end_planning() override { events.emplace_back("end"); }
  void step(const std::string&, std::int64_t, std::int64_t, double) override {}

  std::vector<std::string> events;
};

std::vector<std::string> events_of(const std::vector<std::string>& more) {
  const TemporaryDirectory directory;
  std::vector<std::string> arguments = {"--model",
                                        "nano",
                                        "--data",
                                        directory.write("text.txt", std::string(2000, 'a')),
                                        "--max-steps",
                                        "1",
                                        "--sequence-length",
                                        "32",
                                        "--run-dir",
                                        directory.path("run")};
  arguments.insert(arguments.end(), more.begin(), more.end());
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
  const std::vector<std::string> dry = {"begin", "end", "nano:", "data:"};
  EXPECT_EQ(events_of({"--dry-run"}), dry);
  // Once, however many ranks plan.
  EXPECT_EQ(events_of({"--dry-run", "--local-ranks", "2", "--pipeline-parallel", "2"}), dry);
  std::vector<std::string> run = events_of({});
  ASSERT_GE(run.size(), dry.size());
  run.resize(dry.size());
  EXPECT_EQ(run, dry);
}

TEST(TrainPlanning, EndsAlsoWhereTheStepDoesNotFit) {
  const std::vector<std::string> refused = {"begin", "end", "refused"};
  EXPECT_EQ(events_of({"--device-memory", "4KiB"}), refused);
  EXPECT_EQ(events_of({"--device-memory", "4KiB", "--dry-run"}), refused);
}

// Standard output is the document's alone.
TEST(TrainPlanning, IsNotToldBesideADocument) {
  EXPECT_EQ(events_of({"--dry-run", "--json"}), std::vector<std::string>{"{\n  \""});
  const std::vector<std::string> refused = {"{\n  \"", "refused"};
  EXPECT_EQ(events_of({"--dry-run", "--json", "--device-memory", "4KiB"}), refused);
}

}  // namespace
}  // namespace terrace
