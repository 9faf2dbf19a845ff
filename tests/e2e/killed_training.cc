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

constexpr int kCheckpointEvery = 5;

std::vector<std::string> entries(const std::string& directory) {
  std::vector<std::string> names;
  if (!fs::is_directory(directory)) return names;
  for (const auto& entry : fs::directory_iterator(directory)) {
    names.push_back(entry.path().filename().string());
  }
  return names;
}

class KilledTraining {
 public:
  explicit KilledTraining(std::uint64_t seed) : random_(seed) {}

  void kill_and_check() {
    const std::string stale = stale_job_directory();
    ProgramRun run(command({"--resume", "auto"}));
    // Often in the middle of a checkpoint, as those take most of the time.
    const int steps = static_cast<int>(random_() % 9);
    const auto pause = std::chrono::microseconds(random_() % 40'000);
    EXPECT_TRUE(run.wait_for("\nstep ", steps)) << run.wait();
    std::this_thread::sleep_for(pause);
    run.send(SIGKILL);
    const Outcome outcome = run.wait();
    EXPECT_EQ(outcome.signal, SIGKILL) << outcome;
    if (steps > 0) expect_start(outcome, stale);
    committed_ = last_committed();
  }

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
    return training_.command(
        run, training_.nvme() + more +
                 Arguments{"--max-steps", "100000", "--checkpoint-every",
                           std::to_string(kCheckpointEvery), "--validation-fraction", "0",
                           "--place-optimizer", "nvme"});
  }

  // What a killed run left on the drive; empty if nothing.
  std::string stale_job_directory() const {
    const std::vector<std::string> left = entries(training_.path("nvme"));
    EXPECT_LE(left.size(), 1U);
    return left.empty() ? std::string() : training_.path("nvme/" + left.front());
  }

  // The highest step whose checkpoint has its manifest; 0 for none.
  int last_committed() const {
    int last = 0;
    for (const std::string& name : entries(training_.path("killed"))) {
      const bool complete = training_.directory().has("killed/" + name + "/manifest.json");
      if (name.starts_with("checkpoint-") && !name.ends_with(".writing") && complete) {
        last = std::max(last, std::stoi(name.substr(11)));
      }
    }
    return last;
  }

  // A start goes on from the last committed checkpoint, and removes what the killed run left.
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
  int committed_ = 0;
};

}  // namespace

void expect_kills_leave_no_trace(std::uint64_t seed, int kills) {
  SCOPED_TRACE(testing::Message() << "seed " << seed);
  KilledTraining training(seed);
  for (int i = 0; i < kills; ++i) training.kill_and_check();
  training.finish_and_compare();
}

}  // namespace terrace
