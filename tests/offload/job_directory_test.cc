#include "offload/job_directory.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "base/error.h"
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
  // What a job that was killed leaves.
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
