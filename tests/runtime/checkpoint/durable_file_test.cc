#include "runtime/checkpoint/durable_file.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <vector>

#include "base/error.h"
#include "tests/runtime/temporary_directory.h"

namespace terrace {
namespace {

std::span<const std::byte> text_bytes(std::string_view text) {
  return std::as_bytes(std::span(text.data(), text.size()));
}

TEST(DurableFile, AppearsWithCommitOnly) {
  const TemporaryDirectory temporary;
  DurableFile file(temporary.path("a"));
  file.append(text_bytes("one "));
  file.append(text_bytes("two"));
  EXPECT_EQ(file.size(), 7U);
  EXPECT_FALSE(temporary.has("a"));
  EXPECT_TRUE(temporary.has("a.tmp"));
  file.commit();
  EXPECT_EQ(temporary.read("a"), "one two");
  EXPECT_FALSE(temporary.has("a.tmp"));
}

// Where the file system allows it, whole blocks bypass the page cache. The rest of a file does not.
TEST(DurableFile, PiecesOfAnySizeMakeAFileOfBlocks) {
  const TemporaryDirectory temporary;
  std::string content(2 * DurableFile::kBlockBytes + 4097, '\0');
  for (std::size_t n = 0; n < content.size(); ++n) content[n] = static_cast<char>(n % 251);
  DurableFile file(temporary.path("a"));
  std::size_t piece = 1;
  for (std::size_t at = 0; at < content.size();) {
    file.append(text_bytes(std::string_view(content).substr(at, piece)));
    at += piece;
    piece = piece * 3 + 1;
  }
  EXPECT_EQ(file.size(), content.size());
  file.commit();
  EXPECT_TRUE(temporary.read("a") == content);
}

// Returns the number of a file's bytes that are in the page cache.
std::size_t cached_bytes(const std::string& path) {
  const std::size_t size = std::filesystem::file_size(path);
  const int descriptor = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  void* const mapping = ::mmap(nullptr, size, PROT_READ, MAP_SHARED, descriptor, 0);
  ::close(descriptor);
  EXPECT_NE(mapping, MAP_FAILED);
  constexpr std::size_t kPage = 4096;
  std::vector<unsigned char> pages((size + kPage - 1) / kPage);
  EXPECT_EQ(::mincore(mapping, size, pages.data()), 0);
  ::munmap(mapping, size);
  return kPage * static_cast<std::size_t>(
                     std::ranges::count_if(pages, [](unsigned char page) { return page & 1U; }));
}

TEST(DurableFile, BlocksAreNotInThePageCache) {
  const TemporaryDirectory temporary;
  const int probe = ::open(temporary.path("probe").c_str(), O_WRONLY | O_CREAT | O_DIRECT, 0600);
  if (probe < 0) GTEST_SKIP() << "the file system has no O_DIRECT";
  ::close(probe);
  DurableFile file(temporary.path("a"));
  file.append(text_bytes(std::string(3 * DurableFile::kBlockBytes + 100, 'x')));
  file.commit();
  EXPECT_LT(cached_bytes(temporary.path("a")), DurableFile::kBlockBytes / 4);
}

TEST(DurableFile, WithoutCommitTheOldContentStays) {
  const TemporaryDirectory temporary;
  write_durable_file(temporary.path("a"), "old");
  {
    DurableFile file(temporary.path("a"));
    file.append(text_bytes("new"));
  }
  EXPECT_EQ(temporary.read("a"), "old");
  EXPECT_FALSE(temporary.has("a.tmp"));
  write_durable_file(temporary.path("a"), "newer");
  EXPECT_EQ(temporary.read("a"), "newer");
}

TEST(DurableFile, ALeftOverTemporaryFileIsReplaced) {
  const TemporaryDirectory temporary;
  temporary.write("a.tmp", "of a run that was killed, and longer");
  write_durable_file(temporary.path("a"), "new");
  EXPECT_EQ(temporary.read("a"), "new");
}

TEST(DurableFile, AMissingDirectoryIsAnError) {
  const TemporaryDirectory temporary;
  TERRACE_EXPECT_THROW_WITH(DurableFile(temporary.path("no/a")), IoError, "no/a");
}

// A device that is always full stands in for the temporary file.
TEST(DurableFile, AFullDiskIsAnErrorAndLeavesNothing) {
  if (!std::filesystem::exists("/dev/full")) GTEST_SKIP() << "no /dev/full";
  const TemporaryDirectory temporary;
  std::filesystem::create_symlink("/dev/full", temporary.path("a.tmp"));
  DurableFile file(temporary.path("a"));
  try {
    file.append(text_bytes("too much"));
    file.commit();
    FAIL();
  } catch (const IoError& error) {
    EXPECT_EQ(error.where().error_number, ENOSPC);
    EXPECT_EQ(error.where().path, temporary.path("a"));
    EXPECT_FALSE(error.remedy().empty());
  }
  EXPECT_FALSE(temporary.has("a"));
  EXPECT_TRUE(std::filesystem::is_empty(temporary.path()));
}

// A limit on file sizes first makes a write short, and then makes one fail.
TEST(DurableFile, AShortWriteIsContinuedAndTheFailureAfterItSeen) {
  const TemporaryDirectory temporary;
  struct rlimit old = {};
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &old), 0);
  struct rlimit small = old;
  small.rlim_cur = 1000;
  const auto old_handler = std::signal(SIGXFSZ, SIG_IGN);
  DurableFile file(temporary.path("a"));
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &small), 0);
  int error_number = 0;
  std::uint64_t offset = 0;
  try {
    file.append(text_bytes(std::string(1500, 'x')));
    file.commit();
  } catch (const IoError& error) {
    error_number = error.where().error_number;
    offset = error.where().offset;
  }
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &old), 0);
  std::signal(SIGXFSZ, old_handler);
  EXPECT_EQ(error_number, EFBIG);
  EXPECT_EQ(offset, 1000U);
  EXPECT_TRUE(std::filesystem::is_empty(temporary.path()));
}

TEST(DurableFile, ARenameThatFailsLeavesNoTemporaryFile) {
  const TemporaryDirectory temporary;
  temporary.write("a/inside", "a directory is in the way");
  DurableFile file(temporary.path("a"));
  TERRACE_EXPECT_THROW_WITH(file.commit(), IoError, "rename");
  EXPECT_FALSE(temporary.has("a.tmp"));
  EXPECT_TRUE(temporary.has("a/inside"));
}

}  // namespace
}  // namespace terrace
