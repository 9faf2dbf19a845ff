#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <signal.h>
#include <sys/mount.h>
#include <unistd.h>

#include "tests/e2e/tiny_training.h"

// Damage that others do to a run's files while it trains, with each engine. The run ends as
// interface.md says and names the place. It goes on from its last checkpoint with the same bits.
namespace terrace {
namespace {

using testing::AnyOf;
using testing::Eq;
using testing::HasSubstr;
namespace fs = std::filesystem;

// Writes a file until its file system is full.
void fill_up(const std::string& path) {
  const std::string page(4096, 'x');
  std::ofstream filler(path, std::ios::binary);
  while (filler.write(page.data(), static_cast<std::streamsize>(page.size())).flush().good()) {
  }
}

// Gives `directory` a file system of 8 MiB that only this process and its children see.
bool mount_small(const std::string& directory) {
  return ::unshare(CLONE_NEWNS) == 0 &&
         ::mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) == 0 &&
         ::mount("tmpfs", directory.c_str(), "tmpfs", 0, "size=8m") == 0;
}

class DamagedDrive : public testing::TestWithParam<const char*> {
 protected:
  Arguments state_on_drive() const {
    return training_.nvme() + Arguments{"--place-optimizer",     "nvme", "--io-engine", GetParam(),
                                        "--validation-fraction", "0"};
  }
  Arguments command(const std::string& run, const Arguments& more) const {
    return training_.command(run, state_on_drive() + Arguments{"--max-steps", "1000000"} + more);
  }
  // Returns a run without an end that has saved a checkpoint, or null if the engine is refused.
  std::unique_ptr<ProgramRun> start_and_save() const {
    auto run = std::make_unique<ProgramRun>(
        command("run", {"--checkpoint-every", "40", "--keep-last", "2"}));
    if (run->wait_for("\nsaved ")) return run;
    const Outcome outcome = run->wait();
    EXPECT_THAT(outcome.errors, HasSubstr("io_uring was requested, but the system refuses it"))
        << outcome;
    return nullptr;
  }

  // Repeats the damage until the run ends, as data that is written meanwhile may be whole again.
  Outcome damage_until_it_ends(ProgramRun& run, void (*damage)(const fs::path& slot_file)) const {
    for (int i = 0; i < 1000 && !run.has_ended(); ++i) {
      run.send(SIGSTOP);
      for (const std::string& slot_file : run.open_files("/slots.bin")) damage(slot_file);
      run.send(SIGCONT);
      ::usleep(20'000);
    }
    return run.wait();
  }

  // Returns the path in the last "saved PATH\n" of the output.
  static std::string last_saved(const Outcome& outcome) {
    const std::size_t at = outcome.output.rfind("\nsaved ") + 7;
    return outcome.output.substr(at, outcome.output.find('\n', at) - at);
  }

  static void expect_place(const Outcome& outcome) {
    EXPECT_THAT(outcome.errors, HasSubstr("slots.bin"));
    EXPECT_THAT(outcome.errors, HasSubstr("at offset "));
    EXPECT_THAT(outcome.errors, HasSubstr(" bytes"));
  }

  // Expects that going on from the last checkpoint gives the rows that an undisturbed run has
  // there, and that the rows that were written before the end are the same too.
  void expect_goes_on(const Outcome& outcome) const {
    EXPECT_TRUE(training_.nvme_is_empty());
    const std::string saved = last_saved(outcome);
    const std::string last = std::to_string(std::stoi(saved.substr(saved.rfind('-') + 1)) + 3);
    const Outcome resumed =
        run_program(command("elsewhere", {"--resume", saved, "--stop-after-step", last}));
    EXPECT_EQ(resumed.code, 0) << resumed;
    const std::vector<MetricsRow> rows = training_.rows("run");
    const std::string longest = std::to_string(
        std::max<std::int64_t>(std::stoi(last), rows.empty() ? 0 : rows.back().step));
    EXPECT_EQ(run_program(command("alone", {"--stop-after-step", longest})).code, 0);
    const std::vector<MetricsRow> alone = training_.rows("alone");
    for (const auto& found : {rows, training_.rows("elsewhere")}) {
      for (const MetricsRow& row : found) EXPECT_EQ(row, alone.at(row.step - 1));
    }
    EXPECT_EQ(training_.rows("elsewhere").size(), 3U);
  }

  const TinyTraining training_{3, 96};  // slots of more than 1 MiB
};

TEST_P(DamagedDrive, ATruncatedSlotFileIs1Or5) {
  const auto run = start_and_save();
  if (run == nullptr) GTEST_SKIP() << "io_uring is refused here";
  const Outcome outcome = damage_until_it_ends(*run, [](const fs::path& slot_file) {
    std::error_code gone;
    fs::resize_file(slot_file, 4096, gone);
  });
  // Either the part that was cut off is read (1), or data is written behind it first, and then a
  // hole is read (5).
  EXPECT_THAT(outcome.code, AnyOf(Eq(1), Eq(5))) << outcome;
  expect_place(outcome);
  expect_goes_on(outcome);
}

TEST_P(DamagedDrive, ACorruptedSlotFileIs5) {
  const auto run = start_and_save();
  if (run == nullptr) GTEST_SKIP() << "io_uring is refused here";
  const Outcome outcome = damage_until_it_ends(*run, [](const fs::path& slot_file) {
    std::error_code gone;
    const std::uintmax_t size = fs::file_size(slot_file, gone);
    if (gone) return;
    const std::string bytes(size, 'Z');
    std::fstream file(slot_file, std::ios::binary | std::ios::in | std::ios::out);
    file.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  });
  EXPECT_EQ(outcome.code, 5) << outcome;
  EXPECT_THAT(outcome.errors, HasSubstr("checksum"));
  expect_place(outcome);
  expect_goes_on(outcome);
}

TEST_P(DamagedDrive, AWriteThatIsRefusedIs1) {
  const auto run = start_and_save();
  if (run == nullptr) GTEST_SKIP() << "io_uring is refused here";
  run->limit_file_size(256 * 4096);  // the rows of the metrics are far from that
  const Outcome outcome = run->wait();
  EXPECT_EQ(outcome.code, 1) << outcome;
  EXPECT_THAT(outcome.errors, HasSubstr("File too large"));
  expect_place(outcome);
  expect_goes_on(outcome);
}

// The space of the slot files is allocated before the first step.
TEST_P(DamagedDrive, ADriveThatFillsUpLaterDoesNotMatter) {
  if (!mount_small(training_.path("nvme"))) GTEST_SKIP() << "needs the right to mount";
  const auto run = start_and_save();
  if (run == nullptr) GTEST_SKIP() << "io_uring is refused here";
  fill_up(training_.path("nvme/filler"));
  ASSERT_TRUE(run->wait_for("\nsaved ", 3));
  run->send(SIGTERM);
  const Outcome outcome = run->wait();
  EXPECT_EQ(outcome.code, 75) << outcome;
  fs::remove(training_.path("nvme/filler"));
  expect_goes_on(outcome);
  ::umount2(training_.path("nvme").c_str(), MNT_DETACH);
}

INSTANTIATE_TEST_SUITE_P(Engines, DamagedDrive, testing::Values("io_uring", "posix"),
                         [](const auto& info) { return std::string(info.param); });

// The write of a row of the metrics or of a checkpoint fails, whichever comes first.
TEST(DamagedRunDirectory, ThatFillsUpIs1AndGoesOnOnceThereIsRoom) {
  const TinyTraining training;
  fs::create_directory(training.path("run"));
  if (!mount_small(training.path("run"))) GTEST_SKIP() << "needs the right to mount";
  const Arguments common = {"--max-steps", "1000000", "--validation-fraction", "0"};
  ProgramRun run(
      training.command("run", common + Arguments{"--checkpoint-every", "40", "--keep-last", "2"}));
  ASSERT_TRUE(run.wait_for("\nsaved ")) << run.wait();
  fill_up(training.path("run/filler"));
  const Outcome outcome = run.wait();
  EXPECT_EQ(outcome.code, 1) << outcome;
  EXPECT_THAT(outcome.errors, HasSubstr("No space left on device"));
  EXPECT_THAT(outcome.errors, HasSubstr(training.path("run")));
  fs::remove(training.path("run/filler"));
  const std::size_t at = outcome.output.rfind("/checkpoint-") + 12;
  const std::string last = std::to_string(std::stoi(outcome.output.substr(at)) + 3);
  const Outcome resumed = run_program(
      training.command("run", common + Arguments{"--resume", "auto", "--stop-after-step", last}));
  EXPECT_EQ(resumed.code, 0) << resumed;
  training.train("alone", common + Arguments{"--stop-after-step", last});
  EXPECT_EQ(training.rows("run"), training.rows("alone"));
  training.expect_same("run", "alone", "checkpoint-" + last);
  ::umount2(training.path("run").c_str(), MNT_DETACH);
}

}  // namespace
}  // namespace terrace
