#include "offload/nvme_store.h"

#include <gtest/gtest.h>
#include <sys/resource.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include "base/bytes.h"
#include "tests/offload/store_fixture.h"

namespace terrace {
namespace {

namespace fs = std::filesystem;

class NvmeStoreTest : public ::testing::TestWithParam<IoEngineKind> {
 protected:
  NvmeStoreOptions options_for(int directories) {
    NvmeStoreOptions options;
    options.engine = GetParam();
    for (int i = 0; i < directories; ++i) {
      NvmeDirectory directory;
      directory.path = scratch_.make("drive" + std::to_string(i));
      options.directories.push_back(directory);
    }
    return options;
  }

  // Returns the one slot file of a directory.
  static fs::path slot_file(const NvmeDirectory& directory) {
    for (const auto& job : fs::directory_iterator(directory.path)) {
      return job.path() / "slots.bin";
    }
    return {};
  }

  static std::string prepare_error(BlockStore& store) {
    try {
      store.prepare();
    } catch (const OutOfMemory& error) {
      EXPECT_FALSE(error.remedy().empty());
      return error.what();
    }
    return "";
  }

  ScratchDirectory scratch_;
  SilentLog log_;
};

void flip_byte(const fs::path& path, std::uint64_t offset) {
  std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
  file.seekg(static_cast<std::streamoff>(offset));
  const auto byte = static_cast<char>(file.get() ^ 0x10);
  file.seekp(static_cast<std::streamoff>(offset));
  file.put(byte);
  ASSERT_TRUE(file.good());
}

TEST_P(NvmeStoreTest, AFlippedBitIsFoundAndNamed) {
  const NvmeStoreOptions options = options_for(1);
  const auto store = make_nvme_store(options, log_);
  const ExtentId extent = store->create_extent(4 * kMiB);
  store->prepare();
  AlignedMemory bytes(4 * kMiB, store->alignment());
  bytes.fill(1);
  write_bytes(*store, extent, 0, bytes.span()).throw_if_failed();
  const fs::path file = slot_file(options.directories[0]);
  flip_byte(file, 2 * kMiB + 12345);
  const IoOutcome outcome = read_bytes(*store, extent, 0, bytes.span());
  EXPECT_EQ(outcome.kind, IoOutcome::Kind::kCorrupt);
  EXPECT_EQ(outcome.where.path, file.string());
  EXPECT_EQ(outcome.where.offset, 2 * kMiB);
  EXPECT_EQ(outcome.where.size, kMiB);
  EXPECT_THROW(outcome.throw_if_failed(), CorruptData);
  // The other blocks are still good.
  read_bytes(*store, extent, 0, bytes.span().first(2 * kMiB)).throw_if_failed();
  read_bytes(*store, extent, 3 * kMiB, bytes.span().first(kMiB)).throw_if_failed();
}

TEST_P(NvmeStoreTest, WithoutChecksumsAFlippedBitPasses) {
  NvmeStoreOptions options = options_for(1);
  options.checksums = false;
  const auto store = make_nvme_store(options, log_);
  const ExtentId extent = store->create_extent(kMiB);
  store->prepare();
  AlignedMemory bytes(kMiB, store->alignment());
  bytes.fill(1);
  write_bytes(*store, extent, 0, bytes.span()).throw_if_failed();
  flip_byte(slot_file(options.directories[0]), 100);
  const std::byte before = bytes.span()[100];
  read_bytes(*store, extent, 0, bytes.span()).throw_if_failed();
  EXPECT_EQ(bytes.span()[100], before ^ std::byte{0x10});
}

TEST_P(NvmeStoreTest, ATruncatedFileIsAFailure) {
  const NvmeStoreOptions options = options_for(1);
  const auto store = make_nvme_store(options, log_);
  const ExtentId extent = store->create_extent(4 * kMiB);
  store->prepare();
  AlignedMemory bytes(4 * kMiB, store->alignment());
  bytes.fill(1);
  write_bytes(*store, extent, 0, bytes.span()).throw_if_failed();
  const fs::path file = slot_file(options.directories[0]);
  fs::resize_file(file, kMiB + kMiB / 2 + 700);  // a short read first, then none
  const IoOutcome outcome = read_bytes(*store, extent, kMiB, bytes.span().first(kMiB));
  EXPECT_EQ(outcome.kind, IoOutcome::Kind::kFailed);
  EXPECT_EQ(outcome.where.operation, "read");
  EXPECT_EQ(outcome.where.path, file.string());
  EXPECT_EQ(outcome.where.offset, kMiB);
  EXPECT_THROW(outcome.throw_if_failed(), IoError);
  read_bytes(*store, extent, 0, bytes.span().first(kMiB)).throw_if_failed();
}

// A process that is killed from then on leaves nothing behind.
TEST_P(NvmeStoreTest, FilesWithoutNamesLeaveNothing) {
  NvmeStoreOptions options = options_for(2);
  options.named_files = false;
  const auto store = make_nvme_store(options, log_);
  for (const NvmeDirectory& directory : options.directories) {
    EXPECT_TRUE(fs::is_empty(directory.path));
  }
  const ExtentId extent = store->create_extent(2 * kMiB);
  store->prepare();
  AlignedMemory bytes(2 * kMiB, store->alignment());
  bytes.fill(1);
  write_bytes(*store, extent, 0, bytes.span()).throw_if_failed();
  AlignedMemory found(2 * kMiB, store->alignment());
  read_bytes(*store, extent, 0, found.span()).throw_if_failed();
  EXPECT_TRUE(std::ranges::equal(found.span(), bytes.span()));
}

TEST_P(NvmeStoreTest, BlocksAreSpreadOverTheDirectories) {
  const NvmeStoreOptions options = options_for(3);
  const auto store = make_nvme_store(options, log_);
  const ExtentId extent = store->create_extent(6 * kMiB);
  store->prepare();
  for (const NvmeDirectory& directory : options.directories) {
    EXPECT_EQ(fs::file_size(slot_file(directory)), 2 * kMiB);
  }
  AlignedMemory bytes(6 * kMiB, store->alignment());
  bytes.fill(1);
  write_bytes(*store, extent, 0, bytes.span()).throw_if_failed();
  // Block 4 is the second block of the second directory.
  flip_byte(slot_file(options.directories[1]), kMiB + 5);
  const IoOutcome outcome = read_bytes(*store, extent, 0, bytes.span());
  EXPECT_EQ(outcome.kind, IoOutcome::Kind::kCorrupt);
  EXPECT_EQ(outcome.where.path, slot_file(options.directories[1]).string());
  EXPECT_EQ(outcome.where.offset, kMiB);
  EXPECT_EQ(store->paths().size(), 3U);
}

TEST_P(NvmeStoreTest, SpaceIsReservedAndGivenBack) {
  const NvmeStoreOptions options = options_for(1);
  auto store = make_nvme_store(options, log_);
  store->create_extent(3 * kMiB + 1);
  store->prepare();
  EXPECT_EQ(fs::file_size(slot_file(options.directories[0])), store->used_bytes());
  store.reset();
  EXPECT_TRUE(fs::is_empty(options.directories[0].path));
}

TEST_P(NvmeStoreTest, ABudgetIsKept) {
  NvmeStoreOptions options = options_for(2);
  options.directories[1].budget_bytes = kMiB;
  const auto store = make_nvme_store(options, log_);
  store->create_extent(4 * kMiB);
  const std::string error = prepare_error(*store);
  EXPECT_NE(error.find(options.directories[1].path), std::string::npos) << error;
  EXPECT_NE(error.find(format_size(2 * kMiB)), std::string::npos) << error;
  EXPECT_NE(error.find(format_size(kMiB)), std::string::npos) << error;
  // Nothing is left, though the store still lives.
  for (const NvmeDirectory& directory : options.directories) {
    EXPECT_TRUE(fs::is_empty(directory.path));
  }
}

TEST_P(NvmeStoreTest, ABudgetThatSufficesIsEnough) {
  NvmeStoreOptions options = options_for(1);
  options.directories[0].budget_bytes = 2 * kMiB;
  const auto store = make_nvme_store(options, log_);
  store->create_extent(2 * kMiB);
  EXPECT_EQ(prepare_error(*store), "");
}

TEST_P(NvmeStoreTest, ADriveThatIsTooSmallIsRefusedBeforeItIsFilled) {
  const NvmeStoreOptions options = options_for(2);
  const auto store = make_nvme_store(options, log_);
  // Each half would fit by itself, but both lie on the same drive.
  const std::size_t available = fs::space(options.directories[0].path).available;
  store->create_extent(available / 4 * 5);
  const std::string error = prepare_error(*store);
  EXPECT_NE(error.find(options.directories[0].path), std::string::npos) << error;
  EXPECT_NE(error.find("free"), std::string::npos) << error;
  for (const NvmeDirectory& directory : options.directories) {
    EXPECT_TRUE(fs::is_empty(directory.path));
  }
}

TEST_P(NvmeStoreTest, ALimitOnFileSizesIsAnErrorAndNotASignal) {
  const NvmeStoreOptions options = options_for(1);
  const auto store = make_nvme_store(options, log_);
  store->create_extent(8 * kMiB);
  struct rlimit before = {};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &before), 0);
  struct rlimit small = before;
  small.rlim_cur = 4 * kMiB;
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &small), 0);
  const std::string error = prepare_error(*store);
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &before), 0);
  EXPECT_NE(error.find(options.directories[0].path), std::string::npos) << error;
  EXPECT_TRUE(fs::is_empty(options.directories[0].path));
}

TEST_P(NvmeStoreTest, WhatCannotBeUsedIsRefusedByName) {
  NvmeStoreOptions options = options_for(2);
  options.directories[1].path = (scratch_.path() / "absent").string();
  try {
    make_nvme_store(options, log_);
    FAIL();
  } catch (const ConfigError& error) {
    EXPECT_NE(std::string(error.what()).find(options.directories[1].path), std::string::npos);
  }
  EXPECT_TRUE(fs::is_empty(options.directories[0].path));
  options.directories.clear();
  EXPECT_THROW(make_nvme_store(options, log_), ConfigError);
  options = options_for(1);
  options.queue_depth = 0;
  EXPECT_THROW(make_nvme_store(options, log_), ConfigError);
}

TEST_P(NvmeStoreTest, TwoStoresShareADirectory) {
  const NvmeStoreOptions options = options_for(1);
  const auto first = make_nvme_store(options, log_);
  const auto second = make_nvme_store(options, log_);
  const ExtentId a = first->create_extent(kMiB);
  const ExtentId b = second->create_extent(kMiB);
  first->prepare();
  second->prepare();
  AlignedMemory bytes(kMiB, first->alignment());
  AlignedMemory back(kMiB, first->alignment());
  bytes.fill(1);
  write_bytes(*first, a, 0, bytes.span()).throw_if_failed();
  back.fill(2);
  write_bytes(*second, b, 0, back.span()).throw_if_failed();
  read_bytes(*first, a, 0, back.span()).throw_if_failed();
  EXPECT_TRUE(back == bytes);
}

TEST_P(NvmeStoreTest, ARequestOutsideTheRulesIsStopped) {
  GTEST_FLAG_SET(death_test_style, "fast");  // a new process would leave its files
  const auto store = make_nvme_store(options_for(1), log_);
  const ExtentId extent = store->create_extent(2 * kMiB);
  store->prepare();
  AlignedMemory bytes(3 * kMiB, store->alignment());
  EXPECT_DEATH(write_bytes(*store, extent, 0, bytes.span()), "extent_end");
  EXPECT_DEATH(write_bytes(*store, extent, 4096, bytes.span().first(kMiB)), "block_bytes_");
  EXPECT_DEATH(write_bytes(*store, extent, 0, bytes.span().first(4096)), "block_bytes_");
  EXPECT_DEATH(write_bytes(*store, extent, 0, bytes.span().subspan(8, kMiB)), "alignment");
}

INSTANTIATE_TEST_SUITE_P(Engines, NvmeStoreTest,
                         ::testing::Values(IoEngineKind::kAuto, IoEngineKind::kPosix),
                         [](const auto& info) {
                           return info.param == IoEngineKind::kAuto ? "auto_engine" : "posix";
                         });

}  // namespace
}  // namespace terrace
