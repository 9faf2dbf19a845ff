#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <signal.h>
#include <sys/mount.h>
#include <unistd.h>

#include <algorithm>

#include "tests/e2e/tiny_training.h"

namespace terrace {
namespace {

using testing::HasSubstr;
namespace fs = std::filesystem;

// Mounts a file system of `bytes` that only this process and its children see, and that ends with
// them. Returns false if that is not allowed.
bool mount_private(const std::string& directory, const std::string& bytes) {
  fs::create_directory(directory);
  return ::unshare(CLONE_NEWNS) == 0 &&
         ::mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) == 0 &&
         ::mount("tmpfs", directory.c_str(), "tmpfs", 0, ("size=" + bytes).c_str()) == 0;
}

TEST(FailedDisk, AFullRunDirectoryIs1AndKeepsTheEarlierCheckpoint) {
  const TinyTraining training;
  if (!mount_private(training.path("run"), "1m")) GTEST_SKIP() << "needs the right to mount";
  const Arguments steps = {"--max-steps", "40", "--checkpoint-every", "2"};
  const Outcome outcome = run_program(training.command("run", steps));
  EXPECT_EQ(outcome.code, 1) << outcome;
  EXPECT_THAT(outcome.errors, HasSubstr("No space left on device"));
  EXPECT_THAT(outcome.errors, HasSubstr("free space"));
  EXPECT_THAT(outcome.output, HasSubstr("saved " + training.path("run/checkpoint-2\n")));
  EXPECT_THAT(outcome.errors, HasSubstr("checkpoint-40 is not saved"));
  EXPECT_TRUE(training.directory().has("run/final/model.safetensors")) << "it is smaller, and fits";
  // Goes on in another directory from the last checkpoint that was saved.
  const std::size_t at = outcome.output.rfind("saved " + training.path("run/checkpoint-")) + 6;
  const std::string saved = outcome.output.substr(at, outcome.output.find('\n', at) - at);
  training.train("elsewhere", {"--max-steps", "40", "--resume", saved});
  training.train("alone", {"--max-steps", "40"});
  EXPECT_TRUE(training.files("elsewhere", "final") == training.files("alone", "final"));
  ::umount2(training.path("run").c_str(), MNT_DETACH);
}

// Returns the steps of a run's complete checkpoints. A run that has not ended may have another one,
// in a directory whose name ends in ".writing" and the like; an ended run must not.
std::vector<int> saved_steps(const std::string& run, bool has_ended) {
  std::vector<int> steps;
  for (const auto& entry : fs::directory_iterator(run)) {
    const std::string name = entry.path().filename().string();
    if (!name.starts_with("checkpoint-")) continue;
    const bool has_its_name = entry.path().extension().empty();
    EXPECT_TRUE(has_its_name || !has_ended) << name;
    if (!has_its_name) continue;
    EXPECT_TRUE(fs::exists(entry.path() / "manifest.json")) << name;
    steps.push_back(std::stoi(name.substr(11)));
  }
  std::sort(steps.begin(), steps.end());
  return steps;
}

// The drive is full when a checkpoint after the first one is due, and has room again when the last
// one is due.
void expect_to_outlive_a_full_disk(const Arguments& more) {
  const TinyTraining training;
  const std::string run_dir = training.path("run");
  if (!mount_private(run_dir, "32m")) GTEST_SKIP() << "needs the right to mount";
  const Arguments steps = more + Arguments{"--max-steps", "400", "--checkpoint-every", "20"};
  ProgramRun run(training.command("run", steps));
  const auto has_rows = [&](std::ptrdiff_t rows) {
    if (!training.directory().has("run/metrics.jsonl")) return false;
    // Counts whole lines, as the last one may be in the middle of its write.
    return std::ranges::count(training.directory().read("run/metrics.jsonl"), '\n') >= rows;
  };
  ASSERT_TRUE(run.wait_for("\nsaved ")) << run.wait();
  run.send(SIGSTOP);
  const std::vector<int> before = saved_steps(run_dir, /*has_ended=*/false);
  const auto free_bytes = fs::space(run_dir).available;
  // There is room for rows, but not for a checkpoint.
  training.directory().write("run/filler", std::string(free_bytes - 200'000, 'x'));
  run.send(SIGCONT);
  const auto behind = before.back() + 50;
  const auto has_failed = [&] { return run.errors().find(" is not saved") != std::string::npos; };
  ASSERT_TRUE(run.wait_until([&] { return has_rows(behind) && has_failed(); })) << run.wait();
  run.send(SIGSTOP);
  EXPECT_LE(saved_steps(run_dir, /*has_ended=*/false).size(), before.size() + 1)
      << "one may have been begun before";
  fs::remove(run_dir + "/filler");
  run.send(SIGCONT);
  const Outcome outcome = run.wait();
  EXPECT_EQ(outcome.code, 0) << outcome;
  EXPECT_THAT(outcome.errors, HasSubstr(" is not saved: write of " + run_dir + "/checkpoint-"));
  EXPECT_THAT(outcome.errors, HasSubstr("No space left on device"));
  EXPECT_THAT(outcome.errors, HasSubstr("the run continues"));
  const std::vector<int> at_the_end = saved_steps(run_dir, /*has_ended=*/true);
  EXPECT_EQ(at_the_end.back(), 400);
  EXPECT_LT(at_the_end.size(), 20U);
  training.train("alone", steps);
  training.expect_same("run", "alone", "final");
  training.expect_same("run", "alone", "checkpoint-400");
  ::umount2(run_dir.c_str(), MNT_DETACH);
}

TEST(FailedDisk, OnTheWayCostsTheCheckpointAndNotTheRun) { expect_to_outlive_a_full_disk({}); }

TEST(FailedDisk, OnTheWayCostsNotTheRunOfSeveralRanks) {
  expect_to_outlive_a_full_disk({"--local-ranks", "2", "--zero-stage", "3"});
}

TEST(FailedDisk, TheBestStateThatDoesNotFitCostsNotTheRun) {
  const TinyTraining training;
  const std::string run_dir = training.path("run");
  if (!mount_private(run_dir, "150k")) GTEST_SKIP() << "needs the right to mount";
  const Outcome outcome = run_program(training.command(
      "run", {"--max-steps", "8", "--eval-every", "2", "--keep-best", "--log-every", "8"}));
  EXPECT_EQ(outcome.code, 1) << outcome << "the last state is the best, and is not saved";
  EXPECT_THAT(outcome.errors, HasSubstr("checkpoint-2 is not saved"));
  EXPECT_TRUE(training.directory().has("run/final/model.safetensors")) << "what fits is there";
  EXPECT_EQ(training.rows("run").size(), 8U);
  EXPECT_TRUE(saved_steps(run_dir, /*has_ended=*/true).empty());
  ::umount2(run_dir.c_str(), MNT_DETACH);
}

TEST(FailedDisk, ARunThatEndsEarlyKeepsItsResultWhereItsCheckpointDoesNotFit) {
  const TinyTraining training;
  const std::string run_dir = training.path("run");
  const std::string held = training.directory().write("held.txt", std::string(3000, '0'));
  if (!mount_private(run_dir, "150k")) GTEST_SKIP() << "needs the right to mount";
  const Outcome outcome = run_program(training.command(
      "run", {"--max-steps", "20", "--eval-every", "2", "--early-stopping-patience", "2",
              "--validation-data", held, "--log-every", "20"}));
  EXPECT_EQ(outcome.code, 1) << outcome;
  EXPECT_THAT(outcome.output, HasSubstr("ends early after step 6"));
  EXPECT_THAT(outcome.errors, HasSubstr("checkpoint-6 is not saved"));
  EXPECT_TRUE(training.directory().has("run/final/model.safetensors")) << "what fits is there";
  EXPECT_TRUE(saved_steps(run_dir, /*has_ended=*/true).empty());
  ::umount2(run_dir.c_str(), MNT_DETACH);
}

// An export that was only begun is no result.
TEST(FailedDisk, AFullRunDirectoryAtTheEndSaysBothAndCanBeRunAgain) {
  const TinyTraining training;
  const std::string run = training.path("run");
  if (!mount_private(run, "64k")) GTEST_SKIP() << "needs the right to mount";
  const Arguments steps = {"--max-steps", "4"};
  const Outcome outcome = run_program(training.command("run", steps));
  EXPECT_EQ(outcome.code, 1) << outcome;
  EXPECT_THAT(outcome.errors, HasSubstr(run + "/final"));
  EXPECT_THAT(outcome.errors, HasSubstr(run + "/checkpoint-4"));
  ASSERT_EQ(::mount("tmpfs", run.c_str(), "tmpfs", MS_REMOUNT, "size=4m"), 0);
  training.train("run", steps + Arguments{"--resume", "auto"});
  training.train("alone", steps);
  training.expect_same("run", "alone", "final");
  ::umount2(run.c_str(), MNT_DETACH);
}

TEST(FailedDisk, ATooSmallDriveIs3AndIsNamed) {
  const TinyTraining training;
  if (!mount_private(training.path("small"), "256k")) GTEST_SKIP() << "needs the right to mount";
  const Outcome outcome = run_program(training.command(
      "run", {"--max-steps", "4", "--nvme", training.path("small"), "--place-optimizer", "nvme"}));
  EXPECT_EQ(outcome.code, 3) << outcome;
  EXPECT_THAT(outcome.errors, HasSubstr(training.path("small")));
  EXPECT_TRUE(fs::is_empty(training.path("small")));
  ::umount2(training.path("small").c_str(), MNT_DETACH);
}

TEST(FailedDisk, AFileThatMayNotGrowIs1) {
  const TinyTraining training;
  const Outcome outcome =
      run_program(training.command("run", {"--max-steps", "4", "--checkpoint-every", "2"}),
                  {.file_bytes_above = 20'000});
  EXPECT_EQ(outcome.code, 1) << outcome;
  EXPECT_THAT(outcome.errors, HasSubstr("File too large"));
  EXPECT_THAT(outcome.errors, HasSubstr("checkpoint-2"));
  EXPECT_FALSE(training.directory().has("run/checkpoint-2"));
}

TEST(FailedDisk, AReadOnlyRunDirectoryIs1) {
  const TinyTraining training;
  fs::create_directory(training.path("run"));
  fs::permissions(training.path("run"), fs::perms::owner_read | fs::perms::owner_exec);
  const Outcome outcome = run_program(training.command("run", {"--max-steps", "4"}),
                                      {.file_bytes_above = {}, .write_permission_of_root = true});
  if (outcome.code == kNotStarted) GTEST_SKIP() << "needs the right to drop rights of root";
  EXPECT_EQ(outcome.code, 1) << outcome;
  EXPECT_THAT(outcome.errors, HasSubstr(training.path("run")));
  EXPECT_THAT(outcome.errors, HasSubstr("Permission denied"));
  EXPECT_THAT(outcome.output, testing::Not(HasSubstr("\nstep ")));
}

// The run directory is not made again behind the user's back, with half of its files missing.
TEST(FailedDisk, AVanishedRunDirectoryIs1) {
  const TinyTraining training;
  ProgramRun run(training.command("run", {"--max-steps", "3000", "--checkpoint-every", "1000"}));
  ASSERT_TRUE(run.wait_for("\nstep ", 2)) << run.wait();
  run.send(SIGSTOP);
  fs::rename(training.path("run"), training.path("moved"));
  run.send(SIGCONT);
  const Outcome outcome = run.wait();
  EXPECT_EQ(outcome.code, 1) << outcome;
  EXPECT_THAT(outcome.errors, HasSubstr(training.path("run")));
  EXPECT_THAT(outcome.errors, HasSubstr("No such file or directory"));
  EXPECT_FALSE(training.directory().has("run"));
}

// The named run directory cannot be made, as it is under a file.
TEST(FailedDisk, ARunDirectoryThatCannotBeMadeIs2) {
  const TinyTraining training;
  const Outcome outcome = run_program(training.command("text.txt/run", {"--max-steps", "4"}));
  EXPECT_EQ(outcome.code, 2) << outcome;
  EXPECT_THAT(outcome.errors, HasSubstr("--run-dir"));
}

TEST(FailedDisk, AnNvmeDirectoryThatIsNotThereIs2) {
  const TinyTraining training;
  const Outcome outcome = run_program(training.command(
      "run", {"--max-steps", "4", "--nvme", training.path("none"), "--place-optimizer", "nvme"}));
  EXPECT_EQ(outcome.code, 2) << outcome;
  EXPECT_THAT(outcome.errors, HasSubstr(training.path("none")));
}

}  // namespace
}  // namespace terrace
