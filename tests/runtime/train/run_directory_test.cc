#include "runtime/train/run_directory.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/file.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <filesystem>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "base/error.h"
#include "tests/offload/denied_calls.h"
#include "tests/runtime/temporary_directory.h"

namespace terrace {
namespace {

namespace fs = std::filesystem;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr auto kNoWait = std::chrono::milliseconds(0);

class ListedLog final : public Log {
 public:
  void info(std::string_view line) override {
    infos.emplace_back(line);
    has_info = true;
  }
  void warning(std::string_view line) override { warnings.emplace_back(line); }

  std::vector<std::string> infos;
  std::atomic<bool> has_info = false;
  std::vector<std::string> warnings;
};

class RunDirectoryTest : public ::testing::Test {
 protected:
  RunDirectoryTest() { fs::current_path(directory_.path()); }
  ~RunDirectoryTest() override { fs::current_path(before_); }

  static TrainOptions options_for(const std::string& run_dir) {
    TrainOptions options;
    options.model.model = "nano";
    options.run.run_dir = run_dir;
    return options;
  }

  // Locks the directory as another run would. The lock lasts until the returned descriptor is
  // closed.
  static int lock_as_other(const std::string& run_dir) {
    fs::create_directories(run_dir);
    const int file = ::open((run_dir + "/lock").c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644);
    EXPECT_EQ(::flock(file, LOCK_EX | LOCK_NB), 0);
    return file;
  }

  const fs::path before_ = fs::current_path();
  TemporaryDirectory directory_;
  ListedLog log_;
};

// A job array may start several runs in the same second.
TEST_F(RunDirectoryTest, RunsOfOneSecondHaveDirectoriesOfTheirOwn) {
  std::set<std::string> paths;
  std::vector<std::unique_ptr<RunDirectory>> runs;
  for (int i = 0; i < 4; ++i) {
    runs.push_back(std::make_unique<RunDirectory>(options_for(""), log_, kNoWait));
    EXPECT_THAT(runs.back()->path(), HasSubstr("runs/nano-"));
    paths.insert(runs.back()->path());
  }
  EXPECT_EQ(paths.size(), 4U);
  runs[0]->keep();
  const std::string kept = runs[0]->path();
  runs.clear();
  EXPECT_TRUE(fs::exists(kept));
  EXPECT_EQ(std::distance(fs::directory_iterator("runs"), fs::directory_iterator()), 1);
}

TEST_F(RunDirectoryTest, OfAnotherRunIsRefusedAndLeftAsItIs) {
  const int other = lock_as_other("run");
  EXPECT_THROW(RunDirectory(options_for("run"), log_, kNoWait), ConfigError);
  EXPECT_TRUE(fs::exists("run/lock"));
  ::close(other);
  EXPECT_EQ(RunDirectory(options_for("run"), log_, kNoWait).path(), "run");
}

// When mpirun is killed, its ranks end only a moment later.
TEST_F(RunDirectoryTest, ARunThatIsAboutToEndIsWaitedForAndThatIsSaid) {
  const int other = lock_as_other("run");
  std::jthread end([&] {
    while (!log_.has_info) std::this_thread::yield();
    ::close(other);
  });
  const RunDirectory run(options_for("run"), log_, std::chrono::minutes(2));
  EXPECT_THAT(log_.infos,
              ElementsAre(HasSubstr("another run is writing to the run directory run")));
  EXPECT_THAT(log_.warnings, IsEmpty());
}

// A run that is refused removes the directory that it has created, even if another run waits for
// it.
TEST_F(RunDirectoryTest, ThatIsRemovedWhileItIsWaitedForIsMadeAgain) {
  const int other = lock_as_other("run");
  std::jthread end([&] {
    while (!log_.has_info) std::this_thread::yield();
    fs::remove_all("run");
    ::close(other);
  });
  RunDirectory run(options_for("run"), log_, std::chrono::minutes(2));
  EXPECT_TRUE(fs::exists("run/lock"));
  ListedLog silent;
  EXPECT_THROW(RunDirectory(options_for("run"), silent, kNoWait), ConfigError);
}

// Locks fail with these errors on Lustre without -o flock, and on some NFS and FUSE file systems.
TEST_F(RunDirectoryTest, WithoutLocksTheRunGoesOnAndThatIsSaid) {
  for (const int error_number : {ENOSYS, ENOLCK, EOPNOTSUPP}) {
    const ExitCode code = in_child([&] {
      if (!forbid(SYS_flock, SYS_flock, error_number)) return kCannotTell;
      const RunDirectory run(options_for("run"), log_, kNoWait);
      return expected_if(fs::exists("run") && log_.warnings.size() == 1 &&
                         log_.warnings[0].find("run directory run cannot be locked") == 4);
    });
    if (code == kCannotTell) GTEST_SKIP() << "seccomp filters are not allowed here";
    EXPECT_EQ(code, kAsExpected) << error_number;
    EXPECT_FALSE(fs::exists("run"));
  }
}

TEST_F(RunDirectoryTest, OnAFullFileSystemIsNoWrongPath) {
  fs::create_directory("full");
  const ExitCode code = in_child([&] {
    if (!mount_memory("full", "1m,nr_inodes=1")) return kCannotTell;
    try {
      const RunDirectory run(options_for("full/run"), log_, kNoWait);
      return kWrong;
    } catch (const OutOfMemory& error) {
      return expected_if(std::string(error.what()).find("no inodes") != std::string::npos &&
                         fs::is_empty("full"));
    }
  });
  if (code == kCannotTell) GTEST_SKIP() << "file systems cannot be mounted here";
  EXPECT_EQ(code, kAsExpected);
}

}  // namespace
}  // namespace terrace
