#include "tests/e2e/killed_training.h"

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <algorithm>
#include <chrono>
#include <random>
#include <thread>

#include "tests/e2e/tiny_training.h"

namespace terrace {
namespace {

namespace fs = std::filesystem;

constexpr int kCheckpointEvery = 20;

std::vector<std::string> entries(const std::string& directory) {
  std::vector<std::string> names;
  if (!fs::is_directory(directory)) return names;
  for (const auto& entry : fs::directory_iterator(directory)) {
    names.push_back(entry.path().filename().string());
  }
  return names;
}

// Where in a run it is killed. Each place gets one quarter of the kills, as otherwise checkpoints
// would take most of them.
enum class Moment { kStart, kSteps, kCheckpoint, kBehindCheckpoint };

class KilledTraining {
 public:
  KilledTraining(std::uint64_t seed, const Arguments& options) : random_(seed), options_(options) {}

  void kill_and_check(Moment moment) {
    const std::string stale = stale_job_directory();
    ProgramRun run(command({"--resume", "auto"}));
    reach(moment, run);
    run.send(SIGKILL);
    const Outcome outcome = run.wait();
    EXPECT_EQ(outcome.signal, SIGKILL) << outcome;
    const bool has_stepped = outcome.output.find("\nstep ") != std::string::npos;
    if (has_stepped) {
      expect_start(outcome, stale);
      EXPECT_TRUE(training_.nvme_is_empty());  // its file has no name by then
    }
    committed_ = training_.last_committed("killed");
    ++(is_writing() ? kills_.in_checkpoints : has_stepped ? kills_.in_steps : kills_.in_starts);
  }

  const Kills& kills() const { return kills_; }

  // Goes on to the first checkpoint after the last one, and compares.
  void finish_and_compare() {
    const std::string stale = stale_job_directory();
    const std::string last = std::to_string(committed_ + 2 * kCheckpointEvery);
    const Outcome outcome = run_program(command({"--resume", "auto", "--stop-after-step", last}));
    EXPECT_EQ(outcome.code, 0) << outcome;
    expect_start(outcome, stale);
    EXPECT_TRUE(training_.nvme_is_empty());
    for (const std::string& name : entries(training_.path("killed"))) {
      EXPECT_FALSE(name.ends_with(".writing")) << name;
    }
    EXPECT_EQ(run_program(command({"--stop-after-step", last}, "alone")).code, 0);
    training_.expect_same("killed", "alone", "checkpoint-" + last);
  }

 private:
  Arguments command(const Arguments& more, const std::string& run = "killed") const {
    const bool evaluates = std::ranges::find(options_, "--eval-every") != options_.end();
    return training_.command(
        run, training_.nvme() + more +
                 Arguments{"--max-steps", "100000", "--checkpoint-every",
                           std::to_string(kCheckpointEvery)} +
                 (evaluates ? Arguments() : Arguments{"--validation-fraction", "0"}) + options_);
  }

  void reach(Moment moment, ProgramRun& run) {
    const auto pause = [this](int us_max) {
      std::this_thread::sleep_for(std::chrono::microseconds(random_() % us_max));
    };
    switch (moment) {
      case Moment::kStart:
        return pause(20'000);
      case Moment::kSteps:
        EXPECT_TRUE(run.wait_for("\nstep ", 1 + static_cast<int>(random_() % 50))) << run.wait();
        return pause(3000);
      case Moment::kCheckpoint:
        EXPECT_TRUE(run.wait_until([this] { return is_writing(); })) << run.wait();
        return pause(15'000);
      case Moment::kBehindCheckpoint:
        EXPECT_TRUE(run.wait_for("\nsaved ")) << run.wait();
        return pause(2000);
    }
  }

  // Returns whether a checkpoint is being written, or was being written when the run was killed.
  bool is_writing() const {
    const std::vector<std::string> names = entries(training_.path("killed"));
    return std::any_of(names.begin(), names.end(),
                       [](const std::string& name) { return name.ends_with(".writing"); });
  }

  // Returns the directory that a killed run left on the drive, or an empty string if there is none.
  std::string stale_job_directory() const {
    const std::vector<std::string> left = entries(training_.path("nvme"));
    EXPECT_LE(left.size(), 1U);
    return left.empty() ? std::string() : training_.path("nvme/" + left.front());
  }

  // Expects a start to go on from the last committed checkpoint, and to remove the files that the
  // killed run left.
  void expect_start(const Outcome& outcome, const std::string& stale) const {
    const std::string resumed = fmt::format("\nresumed after step {}\n", committed_);
    EXPECT_EQ(outcome.output.find(resumed) != std::string::npos, committed_ > 0) << outcome;
    EXPECT_NE(outcome.output.find(fmt::format("\nstep {:>6}/100000 ", committed_ + 1)),
              std::string::npos)
        << outcome;
    if (stale.empty()) return;
    EXPECT_NE(outcome.errors.find("removed " + stale), std::string::npos) << outcome;
    EXPECT_FALSE(fs::exists(stale));
  }

  const TinyTraining training_;
  std::mt19937_64 random_;
  const Arguments options_;
  int committed_ = 0;
  Kills kills_;
};

}  // namespace

Kills expect_kills_leave_no_trace(std::uint64_t seed, int kills,
                                  const std::vector<std::string>& options) {
  SCOPED_TRACE(testing::Message() << "seed " << seed);
  KilledTraining training(seed, options);
  for (int i = 0; i < kills; ++i) training.kill_and_check(static_cast<Moment>(i % 4));
  training.finish_and_compare();
  return training.kills();
}

}  // namespace terrace
