#include "offload/job_directory.h"

#include <gtest/gtest.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "base/error.h"
#include "tests/offload/denied_calls.h"
#include "tests/offload/store_fixture.h"

namespace terrace {
namespace {

namespace fs = std::filesystem;

class RecordingLog final : public Log {
 public:
  void info(std::string_view line) override { infos.emplace_back(line); }
  void warning(std::string_view line) override { warnings.emplace_back(line); }

  std::vector<std::string> infos;
  std::vector<std::string> warnings;
};

std::size_t entries(const fs::path& directory) {
  return static_cast<std::size_t>(
      std::distance(fs::directory_iterator(directory), fs::directory_iterator()));
}

class JobDirectoryTest : public ::testing::Test {
 protected:
  // Makes a directory like the one that a killed job leaves.
  fs::path leave_behind(const std::string& name, const std::vector<std::string>& files) {
    const fs::path path = parent_ / name;
    fs::create_directory(path);
    for (const std::string& file : files) std::ofstream(path / file) << "old bytes";
    return path;
  }

  ScratchDirectory scratch_;
  fs::path parent_ = scratch_.make("drive");
  RecordingLog log_;
};

TEST_F(JobDirectoryTest, IsThereUntilItIsDestroyed) {
  {
    const JobDirectory job(parent_, log_);
    EXPECT_TRUE(fs::is_directory(job.path()));
    std::ofstream(job.slot_file()) << "bytes";
    EXPECT_TRUE(fs::exists(job.slot_file()));
    EXPECT_EQ(fs::path(job.path()).parent_path(), parent_);
  }
  EXPECT_EQ(entries(parent_), 0U);
  EXPECT_TRUE(log_.infos.empty());
}

TEST_F(JobDirectoryTest, LivingOwnersAreLeftAlone) {
  const JobDirectory first(parent_, log_);
  const JobDirectory second(parent_, log_);
  EXPECT_NE(first.path(), second.path());
  EXPECT_TRUE(fs::is_directory(first.path()));
  EXPECT_TRUE(log_.infos.empty());
}

TEST_F(JobDirectoryTest, DirectoriesOfDeadOwnersAreRemovedAndNamed) {
  const fs::path dead = leave_behind("terrace-4242-0123456789abcdef", {"lock", "slots.bin"});
  const fs::path half_made = leave_behind("terrace-4243-0123456789abcdef", {});
  const JobDirectory job(parent_, log_);
  EXPECT_FALSE(fs::exists(dead));
  EXPECT_FALSE(fs::exists(half_made));
  ASSERT_EQ(log_.infos.size(), 2U);
  EXPECT_NE(log_.infos[0].find(dead.string()), std::string::npos);
  EXPECT_NE(log_.infos[1].find(half_made.string()), std::string::npos);
}

TEST_F(JobDirectoryTest, WhatIsNotOursStays) {
  const fs::path other_name = leave_behind("terrace-results", {"lock", "slots.bin"});
  const fs::path other_number = leave_behind("terrace-4242-0123456789abcdeX", {"lock"});
  const fs::path with_more = leave_behind("terrace-4242-0123456789abcdef", {"lock", "notes.txt"});
  const JobDirectory job(parent_, log_);
  EXPECT_TRUE(fs::exists(other_name / "slots.bin"));
  EXPECT_TRUE(fs::exists(other_number / "lock"));
  EXPECT_TRUE(fs::exists(with_more / "notes.txt"));
  EXPECT_TRUE(log_.infos.empty());
  ASSERT_EQ(log_.warnings.size(), 1U);
  EXPECT_NE(log_.warnings[0].find(with_more.string()), std::string::npos);
  EXPECT_NE(log_.warnings[0].find("remove it by hand"), std::string::npos);
}

TEST_F(JobDirectoryTest, AKilledOwnerIsFound) {
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    const JobDirectory job(parent_, log_);
    std::ofstream(job.slot_file()) << "bytes";
    ::_exit(0);  // no destructor runs, as with kill -9
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  ASSERT_EQ(entries(parent_), 1U);
  const JobDirectory job(parent_, log_);
  EXPECT_EQ(entries(parent_), 1U);
  EXPECT_EQ(log_.infos.size(), 1U);
}

// Lustre without -o flock, and some NFS and FUSE have no locks. There it cannot be found out
// whether an owner lives.
TEST_F(JobDirectoryTest, WithoutLocksNothingIsRemovedAndThatIsSaid) {
  const fs::path left = leave_behind("terrace-4242-0123456789abcdef", {"lock", "slots.bin"});
  for (const int error_number : {ENOSYS, ENOLCK, EOPNOTSUPP, EPERM}) {
    const ExitCode code = in_child([&] {
      if (!forbid(SYS_flock, SYS_flock, error_number)) return kCannotTell;
      {
        const JobDirectory job(parent_, log_);
        std::ofstream(job.slot_file()) << "bytes";
        if (!fs::exists(job.slot_file())) return kWrong;
      }
      return expected_if(log_.warnings.size() == 1 &&
                         log_.warnings[0].find("cannot be locked") != std::string::npos &&
                         fs::exists(left / "slots.bin") && entries(parent_) == 1);
    });
    if (code == kCannotTell) GTEST_SKIP() << "seccomp filters are not allowed here";
    EXPECT_EQ(code, kAsExpected) << error_number;
  }
}

// The directory is not wrong: its drive is full, of inodes or of blocks.
TEST_F(JobDirectoryTest, AFullDriveIsNamedAsSuch) {
  const ExitCode code = in_child([&] {
    if (!mount_memory(parent_, "1m,nr_inodes=1")) return kCannotTell;
    try {
      const JobDirectory job(parent_, log_);
      return kWrong;
    } catch (const OutOfMemory& error) {
      const std::string what = error.what();
      return expected_if(what.find("no inodes are free") != std::string::npos &&
                         what.find(parent_) != std::string::npos && fs::is_empty(parent_));
    }
  });
  if (code == kCannotTell) GTEST_SKIP() << "file systems cannot be mounted here";
  EXPECT_EQ(code, kAsExpected);
}

TEST_F(JobDirectoryTest, RefusesWhatIsNoDirectory) {
  std::ofstream(parent_ / "file") << "x";
  for (const std::string name : {"absent", "file"}) {
    try {
      const JobDirectory job(parent_ / name, log_);
      FAIL() << name;
    } catch (const ConfigError& error) {
      EXPECT_NE(std::string(error.what()).find((parent_ / name).string()), std::string::npos);
      EXPECT_FALSE(error.remedy().empty());
    }
  }
}

}  // namespace
}  // namespace terrace
