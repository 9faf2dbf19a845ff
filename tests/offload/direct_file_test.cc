#include "offload/direct_file.h"

#include <dlfcn.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <linux/fs.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>

#include <algorithm>
#include <cstdarg>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "offload/nvme_store.h"
#include "tests/offload/denied_calls.h"
#include "tests/offload/store_fixture.h"

// Imitates file systems that this machine does not have: a test can change what the system reports
// about the files of this program.
namespace terrace {
namespace {

struct ToldOfFiles {
  std::optional<unsigned> memory_alignment;  // for direct I/O
  std::optional<unsigned> offset_alignment;
  std::optional<unsigned long> block;
  std::optional<int> flags;  // the file's, as ioctl() gets and sets them
};
ToldOfFiles told;

template <typename Function>
Function* real(const char* name) {
  return reinterpret_cast<Function*>(::dlsym(RTLD_NEXT, name));
}

}  // namespace
}  // namespace terrace

extern "C" int statx(int directory, const char* path, int flags, unsigned mask,
                     struct statx* facts) noexcept {
  const int result = terrace::real<decltype(statx)>("statx")(directory, path, flags, mask, facts);
#ifdef STATX_DIOALIGN
  const auto& [memory, offset, block, flags_of_file] = terrace::told;
  if (memory || offset) facts->stx_mask |= STATX_DIOALIGN;
  if (memory) facts->stx_dio_mem_align = *memory;
  if (offset) facts->stx_dio_offset_align = *offset;
#endif
  return result;
}

extern "C" int fstatvfs(int file, struct statvfs* facts) noexcept {
  const int result = terrace::real<decltype(fstatvfs)>("fstatvfs")(file, facts);
  if (terrace::told.block) facts->f_bsize = *terrace::told.block;
  return result;
}

extern "C" int ioctl(int file, unsigned long request, ...) noexcept {
  va_list rest;
  va_start(rest, request);
  void* const argument = va_arg(rest, void*);
  va_end(rest);
  std::optional<int>& flags = terrace::told.flags;
  if (flags && request == FS_IOC_GETFLAGS) *static_cast<int*>(argument) = *flags;
  if (flags && request == FS_IOC_SETFLAGS) flags = *static_cast<int*>(argument);
  const bool is_told = flags && (request == FS_IOC_GETFLAGS || request == FS_IOC_SETFLAGS);
  return is_told ? 0 : terrace::real<decltype(ioctl)>("ioctl")(file, request, argument);
}

namespace terrace {
namespace {

using ::testing::HasSubstr;

class DirectFileTest : public ::testing::TestWithParam<IoEngineKind> {
 protected:
  ~DirectFileTest() override { told = {}; }

  std::unique_ptr<BlockStore> make_store() {
    NvmeStoreOptions options;
    options.engine = GetParam();
    options.directories.resize(1);
    options.directories[0].path = scratch_.make("drive");
    return make_nvme_store(options, log_);
  }

  // Makes extents as training does: multiples of kTransferAlignment, in memory too.
  void expect_carries_bytes(BlockStore& store) {
    ASSERT_EQ(store.alignment(), kTransferAlignment);
    constexpr std::size_t kSizes[] = {kTransferAlignment, 3 * kTransferAlignment,
                                      2 * kMiB + 5 * kTransferAlignment, kTransferAlignment};
    std::vector<ExtentId> extents;
    for (const std::size_t size : kSizes) extents.push_back(store.create_extent(size));
    store.prepare();
    // The memory is one page off any larger alignment.
    AlignedMemory memory(3 * kMiB, kMiB);
    for (std::size_t i = 0; i < extents.size(); ++i) {
      memory.fill(i);
      const auto bytes = memory.span().subspan(kTransferAlignment, kSizes[i]);
      const std::vector<std::byte> written(bytes.begin(), bytes.end());
      write_bytes(store, extents[i], 0, bytes).throw_if_failed();
      memory.clear();
      read_bytes(store, extents[i], 0, bytes).throw_if_failed();
      EXPECT_TRUE(std::ranges::equal(bytes, written)) << i;
    }
  }

  bool has_direct_io() const { return DirectFile((scratch_.path() / "file").string()).direct(); }

  ScratchDirectory scratch_;
  SilentLog log_;
};

// Such alignments occur with XFS with blocks of 8 KiB and more, bcachefs, OpenZFS, and drives with
// sectors of 520 bytes.
TEST_P(DirectFileTest, AnAlignmentThatBuffersDoNotHaveGoesThroughThePageCache) {
#ifndef STATX_DIOALIGN
  GTEST_SKIP() << "the C library has no STATX_DIOALIGN";
#endif
  for (const unsigned alignment : {520U, 8192U, 16384U, 65536U, 131072U}) {
    for (const bool of_memory : {false, true}) {
      SCOPED_TRACE(alignment);
      told = {of_memory ? alignment : 512, of_memory ? 512 : alignment, {}, {}};
      const auto store = make_store();
      EXPECT_FALSE(store->paths()[0].direct_io);
      EXPECT_THAT(store->paths()[0].remark, HasSubstr("page cache"));
      expect_carries_bytes(*store);
    }
  }
}

TEST_P(DirectFileTest, NoDirectIoIsNotTried) {
#ifndef STATX_DIOALIGN
  GTEST_SKIP() << "the C library has no STATX_DIOALIGN";
#endif
  told = {0, 0, {}, {}};
  const auto store = make_store();
  EXPECT_THAT(store->paths()[0].remark, HasSubstr("has no direct I/O"));
  expect_carries_bytes(*store);
}

// XFS with such blocks accepts smaller direct transfers, and does them one at a time.
TEST_P(DirectFileTest, ExtentsBeginWithBlocksOfTheFileSystem) {
  if (!has_direct_io()) GTEST_SKIP() << "no direct I/O in the directory of temporary files";
  told.block = 16384;
  EXPECT_EQ(DirectFile((scratch_.path() / "spaced").string()).spacing(), 16384U);
  const auto store = make_store();
  EXPECT_TRUE(store->paths()[0].direct_io);
  expect_carries_bytes(*store);
  EXPECT_EQ(store->used_bytes() % 16384, 0U);
}

// OpenZFS and network file systems report the size of their transfers.
TEST_P(DirectFileTest, SizesThatAreNoBlocksAreNotTakenForSuch) {
  for (const unsigned long block : {131072UL, 1048576UL, 12288UL}) {
    told.block = block;
    const DirectFile file((scratch_.path() / std::to_string(block)).string());
    EXPECT_EQ(file.spacing(), kTransferAlignment) << block;
  }
}

// btrfs would write to other space than the reserved one.
TEST_P(DirectFileTest, AFileIsAskedToBeWrittenInPlace) {
  told.flags = FS_NOATIME_FL;
  const DirectFile file((scratch_.path() / "file").string());
  EXPECT_EQ(told.flags, FS_NOATIME_FL | FS_NOCOW_FL);
}

// A file system may say that it has direct I/O, and refuse every direct transfer.
TEST_P(DirectFileTest, DirectIoThatIsRefusedAtTheFirstTransferIsGivenUp) {
  const std::string path = (scratch_.path() / "refused").string();
  const ExitCode code = in_child([&] {
    if (!forbid(SYS_pwrite64, SYS_pwrite64, EINVAL)) return kCannotTell;
    const DirectFile file(path);
    return expected_if(!file.direct() && file.remark().find("page cache") != std::string::npos);
  });
  if (code == kCannotTell) GTEST_SKIP() << "seccomp filters are not allowed here";
  EXPECT_EQ(code, kAsExpected);
}

INSTANTIATE_TEST_SUITE_P(Engines, DirectFileTest,
                         ::testing::Values(IoEngineKind::kAuto, IoEngineKind::kPosix),
                         [](const auto& instance) {
                           return std::string(instance.param == IoEngineKind::kAuto ? "Auto"
                                                                                    : "Posix");
                         });

}  // namespace
}  // namespace terrace
