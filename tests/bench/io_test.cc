#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/statvfs.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "base/bytes.h"
#include "base/error.h"
#include "bench/bare_drives.h"
#include "bench/bare_threads.h"
#include "bench/bench_list.h"
#include "bench/drive_check.h"
#include "bench/io_plan.h"
#include "tests/offload/denied_calls.h"
#include "tests/offload/store_fixture.h"

// Tests of bench io on a machine that does not have everything that it would use, and without
// io_uring.
namespace terrace {
namespace {

class KeptLog final : public Log {
 public:
  void info(std::string_view line) override { text += std::string(line) + "\n"; }
  void warning(std::string_view line) override { info(line); }

  std::string text;
};

BenchOptions small_bench(const std::string& directory) {
  BenchOptions options;
  options.nvme = {directory};
  options.small = true;
  options.repetitions = 1;
  options.seconds = 0.01;
  return options;
}

class BenchIo : public testing::Test {
 protected:
  bool says(const std::string& text) const { return log_.text.find(text) != std::string::npos; }

  ScratchDirectory scratch_;
  std::string directory_ = scratch_.make("drive");
  BenchOptions options_ = small_bench(directory_);
  KeptLog log_;
};

TEST_F(BenchIo, WhereIoUringIsForbiddenThreadsAreMeasured) {
  const ExitCode code = in_child([&] {
    if (!forbid_io_uring()) return kCannotTell;
    BenchRecord record;
    bench_io(options_, record, log_);
    const std::vector<BenchResult> results = record.results();
    for (const BenchResult& result : results) {
      if (result.limit_is.find("bare loop") != std::string::npos) return kWrong;
    }
    return expected_if(!results.empty() && says("io_uring is refused, so threads are used") &&
                       std::filesystem::is_empty(directory_));
  });
  if (code == kCannotTell) GTEST_SKIP() << "seccomp filters are not allowed here";
  EXPECT_EQ(code, kAsExpected);
}

// A log that keeps the first line that bench io says, and the bytes that a file system of its own
// has in use when it is measured.
class CostLog final : public Log {
 public:
  explicit CostLog(std::string directory) : directory_(std::move(directory)) {}

  void info(std::string_view line) override {
    if (first.empty()) first = line;
    struct statvfs facts = {};
    if (line.find("trying block sizes") == std::string_view::npos) return;
    if (::statvfs(directory_.c_str(), &facts) != 0) return;
    used_bytes = (facts.f_blocks - facts.f_bfree) * facts.f_frsize;
  }
  void warning(std::string_view /*line*/) override {}

  std::string first;
  std::uint64_t used_bytes = 0;

 private:
  const std::string directory_;
};

TEST_F(BenchIo, TellsFirstWhatItTakesOfTheDrives) {
  const ExitCode code = in_child([&] {
    if (!mount_memory(directory_, "1g")) return kCannotTell;
    ::setenv("PATH", "/nonexistent", 1);  // without fio, which takes no space and some time
    CostLog log(directory_);
    BenchRecord record;
    bench_io(options_, record, log);
    const std::string told = fmt::format("bench io: uses {} of {} while it runs",
                                         format_size(log.used_bytes), directory_);
    return expected_if(log.first.starts_with(told));
  });
  if (code == kCannotTell) GTEST_SKIP() << "file systems cannot be mounted here";
  EXPECT_EQ(code, kAsExpected);
}

// The files have no names, so they vanish whatever ends the process.
TEST_F(BenchIo, DrivesHaveNoFilesWithNames) {
  BareDrives drives({.directories = {directory_},
                     .region_bytes = kMiB,
                     .regions = 2,
                     .block_bytes_max = 64 * kKiB,
                     .depth_max = 4},
                    log_);
  EXPECT_TRUE(std::filesystem::is_empty(directory_));
  drives.fill();
  const IoRate rate = drives.run({.mix = IoMix::kRead, .shape = {64 * kKiB, 4}, .region = 1});
  EXPECT_LT(0, rate.gb_per_s);
  EXPECT_TRUE(std::filesystem::is_empty(directory_));
}

// This is the case for most users who are not root.
TEST_F(BenchIo, WhereLittleMemoryMayBeLockedItIsNotRegistered) {
  const ExitCode code = in_child([&] {
    if (!limit_locked_memory()) return kCannotTell;
    BareDrives drives({.directories = {directory_},
                       .region_bytes = 64 * kMiB,
                       .regions = 1,
                       .block_bytes_max = 8 * kMiB,
                       .depth_max = 4},
                      log_);
    if (drives.way() == IoWay::kThreads) return kCannotTell;
    drives.fill();
    const IoRate rate = drives.run({.mix = IoMix::kRead, .shape = {8 * kMiB, 4}});
    return expected_if(drives.way() == IoWay::kUring && rate.gb_per_s > 0 &&
                       drives.remark().find("ulimit -l") != std::string::npos);
  });
  if (code == kCannotTell) GTEST_SKIP() << "locked memory cannot be limited here";
  EXPECT_EQ(code, kAsExpected);
}

// The regions would fit, and the stores beside them would not.
TEST_F(BenchIo, ADriveThatIsTooSmallForAllOfItIsRefusedBeforeAnythingIsWritten) {
  const ExitCode code = in_child([&] {
    if (!mount_memory(directory_, "340m")) return kCannotTell;
    try {
      BenchRecord record;
      bench_io(options_, record, log_);
      return kWrong;
    } catch (const OutOfMemory& error) {
      return expected_if(std::string(error.what()).find(" are needed on its file system") !=
                             std::string::npos &&
                         log_.text.empty() && std::filesystem::is_empty(directory_));
    }
  });
  if (code == kCannotTell) GTEST_SKIP() << "file systems cannot be mounted here";
  EXPECT_EQ(code, kAsExpected);
}

// In a hurry files are smaller and measurements shorter, so that some rounds of everything fit.
TEST(BenchIoPlan, FitsTheTime) {
  const MachineSpeed speed = {.drive_write_bytes_per_s = 1e9};
  for (const double limit_s : {5.0, 30.0, 120.0}) {
    BenchOptions options;
    options.time_limit_s = limit_s;
    EXPECT_GT(cost_of_io(options, speed).seconds, limit_s);
    fit_io(options, speed);
    EXPECT_FALSE(options.grid);
    EXPECT_LE(static_cast<double>(io_space(options)) / speed.drive_write_bytes_per_s,
              0.3 * limit_s);
    EXPECT_GE(io_region_bytes(options), 32 * kMiB);
    EXPECT_GE(options.seconds, 0.02);
    options.repetitions = limit_s > 10 ? 3 : 1;
    EXPECT_LE(cost_of_io(options, speed).seconds, limit_s);
  }
}

TEST(BenchIoPlan, WithoutAGridThereAreFewShapes) {
  BenchOptions options;
  EXPECT_EQ(io_shapes_to_try(options, false).size(), 49U);
  options.grid = false;
  EXPECT_EQ(io_shapes_to_try(options, false).size(), 1U);
  EXPECT_EQ(io_shapes_to_try(options, true).size(), 1U);
}

TEST_F(BenchIo, DrivesAreRefusedThatAreNotThereOrTooSmall) {
  constexpr std::uint64_t kTooMuch = std::uint64_t{1} << 60;
  EXPECT_NO_THROW(check_drives(options_, kMiB, log_));
  EXPECT_THROW(check_drives(options_, kTooMuch, log_), OutOfMemory);
  EXPECT_TRUE(std::filesystem::is_empty(directory_));
  options_.nvme.push_back(directory_ + "/none");
  EXPECT_THROW(check_drives(options_, kMiB, log_), ConfigError);
}

constexpr std::size_t kBlock = 64 * kKiB;
constexpr std::size_t kBlocks = 16;
constexpr int kThreads = 4;

// The same tests as for the bare loop (bare_loop_test.cc), except for the order in which threads
// come.
class BareThreadsTest : public testing::Test {
 protected:
  void SetUp() override {
    content_.fill(3);
    memory_.fill(9);
    ASSERT_EQ(file_.preallocate(kBlock * kBlocks), 0);
    ASSERT_EQ(file_.write_at(content_.span(), 0), static_cast<std::int64_t>(kBlock * kBlocks));
  }

  // Carries one block for each thread.
  void carry(IoMix mix, const FileRange& range = {.begin = 0, .bytes = kBlock * kBlocks}) {
    EXPECT_EQ(run_bare_threads(file_, range, memory_.span(), {{kBlock, kThreads}, mix, 0}),
              kBlock * kThreads);
  }
  // Returns the blocks of the file that are no longer as they were.
  std::vector<std::size_t> written() {
    AlignedMemory now(kBlock * kBlocks, 4096);
    EXPECT_EQ(file_.read_at(now.span(), 0), static_cast<std::int64_t>(kBlock * kBlocks));
    std::vector<std::size_t> blocks;
    for (std::size_t block = 0; block < kBlocks; ++block) {
      if (!std::ranges::equal(now.span().subspan(block * kBlock, kBlock),
                              content_.span().subspan(block * kBlock, kBlock))) {
        blocks.push_back(block);
      }
    }
    return blocks;
  }

  ScratchDirectory scratch_;
  DirectFile file_{scratch_.path() / "file"};
  AlignedMemory content_{kBlock * kBlocks, 4096};
  AlignedMemory memory_{kBlock * kThreads, 4096};
};

TEST_F(BareThreadsTest, ReadsTheFirstBlocksAndChangesNothing) {
  carry(IoMix::kRead);
  for (std::size_t block = 0; block < kThreads; ++block) {
    const auto wanted = content_.span().subspan(block * kBlock, kBlock);
    bool found = false;
    for (std::size_t place = 0; place < kThreads; ++place) {
      found = found || std::ranges::equal(memory_.span().subspan(place * kBlock, kBlock), wanted);
    }
    EXPECT_TRUE(found) << block;
  }
  EXPECT_THAT(written(), testing::IsEmpty());
}

TEST_F(BareThreadsTest, WritesTheFirstBlocks) {
  carry(IoMix::kWrite);
  EXPECT_THAT(written(), testing::ElementsAre(0, 1, 2, 3));
}

TEST_F(BareThreadsTest, MixedWritesTheOtherHalf) {
  carry(IoMix::kMixed);
  EXPECT_THAT(written(), testing::ElementsAre(8, 9));
}

TEST_F(BareThreadsTest, StaysInItsPartOfTheFile) {
  carry(IoMix::kWrite, {.begin = 6 * kBlock, .bytes = 3 * kBlock});
  EXPECT_THAT(written(), testing::ElementsAre(6, 7, 8));
}

TEST_F(BareThreadsTest, ABlockThatEndsEarlyIsAnError) {
  ASSERT_EQ(::truncate((scratch_.path() / "file").c_str(), kBlock + 4096), 0);
  EXPECT_THROW(carry(IoMix::kRead), IoError);
}

}  // namespace
}  // namespace terrace
