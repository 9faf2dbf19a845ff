#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <sys/mount.h>

#include <filesystem>
#include <nlohmann/json.hpp>
#include <set>

#include "tests/e2e/tiny_training.h"

// --checkpoint-every auto, which is the default.
namespace terrace {
namespace {

namespace fs = std::filesystem;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::MatchesRegex;
using testing::Not;

std::set<std::string> checkpoints(const TinyTraining& training, const std::string& run) {
  std::set<std::string> names;
  for (const auto& entry : fs::directory_iterator(training.path(run))) {
    const std::string name = entry.path().filename().string();
    if (name.starts_with("checkpoint-")) names.insert(name);
  }
  return names;
}

std::string interval_in(const TinyTraining& training, const std::string& run) {
  const std::string toml = training.directory().read(run + "/config.toml");
  const std::string key = "checkpoint_every = ";
  const std::size_t begin = toml.find(key) + key.size();
  return toml.substr(begin, toml.find('\n', begin) - begin);
}

TEST(AutomaticCheckpoints, AreSaidBeforeTheFirstStep) {
  const TinyTraining training;
  const std::string output = training.train("run", {"--max-steps", "1"}).output;
  const std::size_t said = output.find(
      "saves the state about every 15 minutes "
      "(--checkpoint-every auto)");
  ASSERT_NE(said, std::string::npos) << output;
  EXPECT_LT(said, output.find("\nstep 1/1"));
  EXPECT_EQ(interval_in(training, "run"), "\"auto\"") << "one step does not tell the number";
  EXPECT_THAT(training.train("none", {"--max-steps", "1", "--checkpoint-every", "0"}).output,
              HasSubstr("saves only when the run ends (--checkpoint-every 0)"));
  const Arguments dry = {"--max-steps", "1", "--dry-run"};
  EXPECT_THAT(training.train("dry", dry).output, HasSubstr("saves the state about every 15"));
}

// The steps are so short that no automatic checkpoint is due in a run of ten.
TEST(AutomaticCheckpoints, TheirNumberOfStepsIsChosenOnceAndStays) {
  const TinyTraining training;
  const Arguments steps = {"--max-steps", "10", "--local-ranks", "2"};
  const Outcome first = training.train("run", steps + Arguments{"--stop-after-step", "8"});
  EXPECT_THAT(first.output, HasSubstr("about every 15 minutes (--checkpoint-every auto)\nstep"));
  const std::string chosen = interval_in(training, "run");
  EXPECT_THAT(chosen, MatchesRegex("[1-9][0-9]*"));
  const Outcome resumed = run_program({"train", "--config", training.path("run/config.toml"),
                                       "--resume", "auto", "--stop-after-step", "0"});
  EXPECT_EQ(resumed.code, 0) << resumed;
  const std::string kept = "saves the state every " + chosen + " steps (--checkpoint-every auto)";
  EXPECT_THAT(resumed.output, HasSubstr(kept));
  EXPECT_EQ(interval_in(training, "run"), chosen);
  // The number also stays without the run's configuration, unless another one is given.
  const Arguments more = {"--max-steps", "12", "--stop-after-step", "11", "--resume", "auto"};
  EXPECT_THAT(training.train("run", more).output, HasSubstr(kept));
  const Arguments named = {"--max-steps", "12", "--resume", "auto", "--checkpoint-every", chosen};
  EXPECT_THAT(training.train("run", named).output, HasSubstr("saves the state every " + chosen));
}

// The last two automatic checkpoints stay, and so do all that were asked for: each start ends with
// a checkpoint of its own.
TEST(AutomaticCheckpoints, AreRemovedUpToTheLastTwoAndNoOthersAre) {
  const TinyTraining training;
  const Arguments common = {"--max-steps", "12", "--eval-every", "12", "--resume", "auto"};
  training.train("run", common + Arguments{"--stop-after-step", "1", "--checkpoint-every", "1"});
  for (const char* stop : {"3", "5", "7", "9"}) {
    training.train("run",
                   common + Arguments{"--checkpoint-every", "auto:2", "--stop-after-step", stop});
  }
  EXPECT_THAT(checkpoints(training, "run"),
              ElementsAre("checkpoint-1", "checkpoint-3", "checkpoint-5", "checkpoint-6",
                          "checkpoint-7", "checkpoint-8", "checkpoint-9"));
  // A number that is named ends the automatic checkpoints. The existing ones then stay.
  training.train("run", common + Arguments{"--checkpoint-every", "10"});
  EXPECT_EQ(checkpoints(training, "run").size(), 8U);
}

TEST(AutomaticCheckpoints, ChangeNoBitOfTheRun) {
  const TinyTraining training;
  const std::vector<Arguments> variants = {
      {}, {"--local-ranks", "2", "--zero-stage", "3"}, {"--lora-rank", "2"}};
  int number = 0;
  for (const Arguments& variant : variants) {
    const std::string name = std::to_string(++number);
    const Arguments steps = variant + Arguments{"--max-steps", "9"};
    training.train("off" + name, steps + Arguments{"--checkpoint-every", "0"});
    training.train("on" + name, steps + Arguments{"--checkpoint-every", "auto:2"});
    training.train("auto" + name, steps);
    EXPECT_FALSE(checkpoints(training, "on" + name).empty());
    EXPECT_LE(checkpoints(training, "on" + name).size(), 2U);
    training.expect_same("on" + name, "off" + name, "final");
    training.expect_same("auto" + name, "off" + name, "final");
  }
}

TEST(AutomaticCheckpoints, OfAKilledRunAreGoneOnFrom) {
  const TinyTraining training;
  ProgramRun run(
      training.command("run", {"--max-steps", "1000000", "--checkpoint-every", "auto:3"}));
  ASSERT_TRUE(run.wait_for("\nsaved ", 2)) << run.wait();
  run.send(SIGKILL);
  run.wait();
  const int saved = training.last_committed("run");
  EXPECT_LT(0, saved);
  const std::string last = std::to_string(saved + 4);
  const Arguments stop = {"--max-steps", "1000000", "--stop-after-step", last};
  const Outcome resumed = run_program({"train", "--config", training.path("run/config.toml"),
                                       "--resume", "auto", "--stop-after-step", last});
  EXPECT_EQ(resumed.code, 0) << resumed;
  training.train("alone", stop);
  training.expect_same("run", "alone", "checkpoint-" + last);
}

// The state is 216 MiB. The budget has no room for any of it on its way into a checkpoint.
TEST(AutomaticCheckpoints, TakeNoMemoryThatTheBudgetDoesNotHave) {
  const TinyTraining training(/*layers=*/8, /*width=*/512);
  const Outcome dry =
      training.train("dry", {"--max-steps", "4", "--host-memory", "4GiB", "--dry-run", "--json"});
  const auto document = nlohmann::json::parse(dry.output);
  const auto least_bytes = document["results"][1]["least_bytes"].get<std::int64_t>();
  const Arguments steps = {"--max-steps", "4", "--host-memory", std::to_string(least_bytes)};
  const auto peak_of = [&](const char* run, const char* every) {
    training.train(run, steps + Arguments{"--checkpoint-every", every});
    return training.rows(run).back().columns.at("peak_rss_bytes");
  };
  constexpr double kBuffers = 90 << 20;  // for the files, and for allocations beside them
  EXPECT_LT(peak_of("saves", "auto:1"), peak_of("does-not", "0") + kBuffers);
}

// Mounts a file system of `size` that this process and its children see. Returns false if that is
// not allowed.
bool mount_private(const std::string& directory, const char* size) {
  fs::create_directory(directory);
  return ::unshare(CLONE_NEWNS) == 0 &&
         ::mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) == 0 &&
         ::mount("tmpfs", directory.c_str(), "tmpfs", 0, size) == 0;
}

TEST(AutomaticCheckpoints, AreOffWhereTheyWouldFillTheDriveAndNamedOnesAreRefused) {
  const TinyTraining training;
  if (!mount_private(training.path("run"), "size=200k")) GTEST_SKIP() << "needs the right to mount";
  const Arguments steps = {"--max-steps", "6"};
  const Outcome named =
      run_program(training.command("run", steps + Arguments{"--checkpoint-every", "2"}));
  EXPECT_EQ(named.code, 3) << named;
  EXPECT_THAT(named.errors, HasSubstr("--checkpoint-every 2: a checkpoint takes"));
  EXPECT_THAT(named.output, Not(HasSubstr("\nstep 1")));
  const Outcome dry = run_program(
      training.command("run", steps + Arguments{"--checkpoint-every", "2", "--dry-run"}));
  EXPECT_EQ(dry.code, 0) << dry;
  EXPECT_THAT(dry.output, HasSubstr("--checkpoint-every 2: a checkpoint takes"));
  EXPECT_THAT(dry.output, HasSubstr("a run on this machine would exit with code 3"));
  const Outcome automatic =
      training.train("run", steps + Arguments{"--checkpoint-every", "auto:2"});
  EXPECT_THAT(automatic.errors, HasSubstr("--checkpoint-every auto saves nothing"));
  EXPECT_TRUE(checkpoints(training, "run").empty());
  EXPECT_TRUE(training.directory().has("run/final/model.safetensors"));
  ::umount2(training.path("run").c_str(), MNT_DETACH);
}

}  // namespace
}  // namespace terrace
