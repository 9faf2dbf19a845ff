#include "offload/nvme_shape.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <linux/magic.h>
#include <sys/resource.h>
#include <sys/statfs.h>

#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "offload/direct_file.h"
#include "offload/drive_probe.h"
#include "offload/drive_record.h"
#include "tests/offload/store_fixture.h"

// Tests the shape of a store's drives: measured, remembered, or neither.
namespace terrace {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::SizeIs;

constexpr const char* kNoDirectIo = "drives of temporary files are not measured here";

class KeepingLog final : public Log {
 public:
  void info(std::string_view line) override { lines.emplace_back(line); }
  void warning(std::string_view line) override { lines.emplace_back(line); }
  std::vector<std::string> lines;
};

class NvmeShapeTest : public ::testing::TestWithParam<IoEngineKind> {
 protected:
  // Returns whether the drive of temporary files is one that would be measured.
  bool has_direct_io() const { return DirectFile((scratch_.path() / "direct").string()).direct(); }

  NvmeStoreOptions options() const {
    NvmeStoreOptions options;
    options.engine = GetParam();
    options.directories.push_back({drive_, std::nullopt});
    options.expected_bytes = kGiB;
    options.probe.write_bytes = kProbeBytesMin;
    options.probe.record_directory = records_;
    return options;
  }

  // Makes a store, transfers bytes through it, and returns the lines it logged.
  std::vector<std::string> said_by(const NvmeStoreOptions& options) const {
    KeepingLog log;
    const auto store = make_nvme_store(options, log);
    const std::size_t size = 3 * store->block_bytes() + 1;
    const ExtentId extent = store->create_extent(size);
    store->prepare();
    AlignedMemory bytes(size, store->alignment());
    bytes.fill(1);
    write_bytes(*store, extent, 0, bytes.span()).throw_if_failed();
    AlignedMemory back(size, store->alignment());
    read_bytes(*store, extent, 0, back.span()).throw_if_failed();
    EXPECT_TRUE(back == bytes);
    for (const StorePath& path : store->paths()) EXPECT_LT(0, path.depth);
    return log.lines;
  }

  std::vector<fs::path> records() const {
    std::vector<fs::path> found;
    if (!fs::exists(records_)) return found;
    for (const auto& entry : fs::directory_iterator(records_)) found.push_back(entry.path());
    return found;
  }

  ScratchDirectory scratch_;
  const std::string drive_ = scratch_.make("drive");
  const std::string records_ = scratch_.path() / "records";
};

TEST_P(NvmeShapeTest, ADriveIsMeasuredOnceAndRemembered) {
  if (!has_direct_io()) GTEST_SKIP() << kNoDirectIo;
  const std::vector<std::string> first = said_by(options());
  ASSERT_THAT(first, SizeIs(1));
  EXPECT_THAT(first[0], AllOf(HasSubstr(drive_), HasSubstr("measured now"), HasSubstr(records_)));
  ASSERT_THAT(records(), SizeIs(1));
  const std::vector<std::string> second = said_by(options());
  ASSERT_THAT(second, SizeIs(1));
  EXPECT_THAT(second[0], HasSubstr("remove that file to measure again"));
  // If the record is removed or damaged, the drive is measured again and the record kept.
  fs::remove(records()[0]);
  EXPECT_THAT(said_by(options())[0], HasSubstr("measured now"));
  std::ofstream(records()[0], std::ios::in | std::ios::out) << "x";
  EXPECT_THAT(said_by(options())[0], HasSubstr("measured now"));
  EXPECT_THAT(said_by(options())[0], HasSubstr("remove that"));
  EXPECT_TRUE(fs::is_empty(drive_));
}

// The test plants a shape in the record.
TEST_P(NvmeShapeTest, TheShapeOfTheRecordIsUsed) {
  if (!has_direct_io()) GTEST_SKIP() << kNoDirectIo;
  said_by(options());
  ASSERT_THAT(records(), SizeIs(1));
  std::string key;
  {
    std::ifstream file(records()[0]);
    std::getline(file, key);
    std::getline(file, key);
  }
  {
    DriveRecord record(records_, key);
    ASSERT_TRUE(record.keep({.shape = {256 * kKiB, 24}, .read_gb_per_s = 1, .write_gb_per_s = 1}));
  }
  SilentLog log;
  NvmeStoreOptions of_record = options();
  auto store = make_nvme_store(of_record, log);
  EXPECT_EQ(store->block_bytes(), 256 * kKiB);
  EXPECT_EQ(store->paths()[0].depth, 24);
  store.reset();
  {
    // As many bytes as 24 blocks may be in flight, in more pieces where those are smaller.
    SlotFiles files(of_record, log);
    const InFlight in_flight = nvme_shape(of_record, files, log).in_flight.at(0);
    EXPECT_EQ(in_flight.bytes_max, 24 * 256 * kKiB);
    EXPECT_GT(in_flight.pieces_max, 24);
  }
  of_record.queue_depth = 3;
  EXPECT_EQ(make_nvme_store(of_record, log)->paths()[0].depth, 3);
  SlotFiles files(of_record, log);
  EXPECT_EQ(nvme_shape(of_record, files, log).in_flight.at(0).pieces_max, 3);
}

TEST_P(NvmeShapeTest, ASmallStoreHasTheUsualShapeWithoutAWord) {
  NvmeStoreOptions small = options();
  small.expected_bytes = kGiB - 1;
  EXPECT_THAT(said_by(small), SizeIs(0));
  EXPECT_THAT(records(), SizeIs(0));
  SilentLog log;
  const auto store = make_nvme_store(small, log);
  EXPECT_EQ(store->block_bytes(), kMiB);
  EXPECT_EQ(store->paths()[0].depth, 32);
}

TEST_P(NvmeShapeTest, ABudgetThatIsTooSmallIsNotExceeded) {
  if (!has_direct_io()) GTEST_SKIP() << kNoDirectIo;
  NvmeStoreOptions tight = options();
  tight.directories[0].budget_bytes = kProbeBytesMin - 1;
  const std::vector<std::string> said = said_by(tight);
  ASSERT_THAT(said, SizeIs(1));
  EXPECT_THAT(said[0], AllOf(HasSubstr("not measured"), HasSubstr("budget")));
}

TEST_P(NvmeShapeTest, ALimitOnFileSizesIsKept) {
  if (!has_direct_io()) GTEST_SKIP() << kNoDirectIo;
  struct rlimit before = {};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &before), 0);
  struct rlimit small = before;
  small.rlim_cur = kProbeBytesMin / 2;
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &small), 0);
  const std::vector<std::string> said = said_by(options());
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &before), 0);
  ASSERT_THAT(said, SizeIs(1));
  EXPECT_THAT(said[0], AllOf(HasSubstr("not measured"), HasSubstr("file size limit")));
}

TEST_P(NvmeShapeTest, WhereNothingCanBeKeptItIsMeasuredEachTime) {
  if (!has_direct_io()) GTEST_SKIP() << kNoDirectIo;
  NvmeStoreOptions nowhere = options();
  nowhere.probe.record_directory = "";
  for (int i = 0; i < 2; ++i) {
    EXPECT_THAT(said_by(nowhere), ElementsAre(HasSubstr("cannot be stored")));
  }
}

// Makes every transfer of a file fail.
class Failing final : public SystemFaults {
 public:
  SystemFault fate_of(const SystemCall& call) noexcept override {
    const bool transfers =
        call.kind == SystemCall::Kind::kRead || call.kind == SystemCall::Kind::kWrite;
    if (!transfers) return SystemFault::none(call);
    return {.asked_bytes = 0, .shown = -EIO};
  }
};

TEST_P(NvmeShapeTest, ADriveThatFailsIsNotMeasured) {
  if (!has_direct_io()) GTEST_SKIP() << kNoDirectIo;
  Failing faults;
  NvmeStoreOptions failing = options();
  failing.faults = &faults;
  KeepingLog log;
  const auto store = make_nvme_store(failing, log);
  EXPECT_THAT(log.lines, ElementsAre(HasSubstr("a transfer failed")));
  EXPECT_EQ(store->block_bytes(), kMiB);
  const fs::path job = fs::directory_iterator(drive_)->path();
  EXPECT_EQ(fs::file_size(job / "slots.bin"), 0U);
}

TEST_P(NvmeShapeTest, MemoryIsNotMeasured) {
  struct statfs facts = {};
  if (::statfs("/dev/shm", &facts) != 0 || facts.f_type != TMPFS_MAGIC) {
    GTEST_SKIP() << "there is no file system in memory";
  }
  std::string directory = "/dev/shm/terrace_store_XXXXXX";
  ASSERT_NE(::mkdtemp(directory.data()), nullptr);
  NvmeStoreOptions memory = options();
  memory.directories[0].path = directory;
  const std::vector<std::string> said = said_by(memory);
  fs::remove_all(directory);
  ASSERT_THAT(said, SizeIs(1));
  EXPECT_THAT(said[0], AllOf(HasSubstr("not measured"), HasSubstr("page cache")));
}

TEST_P(NvmeShapeTest, DirectoriesOfOneDriveShareItsEngineAndItsBlocksAlike) {
  NvmeStoreOptions two = options();
  two.directories.push_back({scratch_.make("other"), std::nullopt});
  SilentLog log;
  SlotFiles files(two, log);
  EXPECT_EQ(files.device_count(), 1U);
  EXPECT_THAT(files.device(0).stripes, ElementsAre(0U, 1U));
  const NvmeShape shape = nvme_shape(two, files, log);
  EXPECT_THAT(shape.depths, SizeIs(1));
  EXPECT_EQ(shape.shares[0], shape.shares[1]);
  EXPECT_THAT(said_by(two), SizeIs(1));  // one drive
}

INSTANTIATE_TEST_SUITE_P(Engines, NvmeShapeTest,
                         ::testing::Values(IoEngineKind::kAuto, IoEngineKind::kPosix),
                         [](const auto& info) {
                           return info.param == IoEngineKind::kAuto ? "auto_engine" : "posix";
                         });

}  // namespace
}  // namespace terrace
