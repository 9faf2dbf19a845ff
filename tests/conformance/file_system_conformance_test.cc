#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <cerrno>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>

#include "base/error.h"
#include "runtime/checkpoint/file_system.h"
#include "tests/offload/store_fixture.h"
#include "tests/sim/virtual_files.h"

// Tests the behaviour of every file system under checkpoints.
namespace terrace {
namespace {

using ::testing::IsEmpty;
using ::testing::UnorderedElementsAre;

struct FilesCase {
  std::string name;
  bool is_virtual;
};

class FileSystemConformance : public ::testing::TestWithParam<FilesCase> {
 protected:
  FileSystemConformance() {
    if (!GetParam().is_virtual) return;
    EXPECT_EQ(virtual_files_.make_directory(root_), 0);
  }

  FileSystem& files() {
    return GetParam().is_virtual ? static_cast<FileSystem&>(virtual_files_) : system_files();
  }
  std::string path(const std::string& name) const { return root_ + "/" + name; }

  void write(const std::string& name, const std::string& text) {
    const FileSystem::Opened opened = files().create(path(name));
    ASSERT_NE(opened.file, nullptr) << opened.error_number;
    const auto bytes = std::as_bytes(std::span(text.data(), text.size()));
    EXPECT_EQ(opened.file->append(bytes), static_cast<std::int64_t>(text.size()));
    EXPECT_EQ(opened.file->sync(), 0);
    EXPECT_EQ(opened.file->close(), 0);
  }
  std::string read(const std::string& name) { return read_whole_file(files(), path(name)); }

  const ScratchDirectory scratch_;
  VirtualFiles virtual_files_{7};
  const std::string root_ = GetParam().is_virtual ? "/root" : scratch_.path().string();
};

TEST_P(FileSystemConformance, WhatIsAppendedIsRead) {
  write("a", "one two three");
  EXPECT_EQ(read("a"), "one two three");
  const FileSystem::Opened opened = files().open(path("a"));
  ASSERT_NE(opened.file, nullptr);
  EXPECT_EQ(opened.file->size(), 13);
  std::string part(3, ' ');
  read_fully(*opened.file, path("a"), 4, std::as_writable_bytes(std::span(part)));
  EXPECT_EQ(part, "two");
}

TEST_P(FileSystemConformance, BehindTheEndThereIsNothing) {
  write("a", "four");
  const FileSystem::Opened opened = files().open(path("a"));
  std::string rest(8, ' ');
  const auto out = std::as_writable_bytes(std::span(rest));
  EXPECT_EQ(opened.file->read_at(out, 2), 2);
  EXPECT_EQ(opened.file->read_at(out, 4), 0);
  try {
    read_fully(*opened.file, path("a"), 0, out);
    ADD_FAILURE() << "nothing was thrown";
  } catch (const IoError& error) {
    EXPECT_EQ(error.where().path, path("a"));
    EXPECT_EQ(error.where().offset, 4U);
    EXPECT_EQ(error.where().error_number, 0);
  }
}

TEST_P(FileSystemConformance, CreatingEmptiesWhatIsThere) {
  write("a", "long content");
  write("a", "short");
  EXPECT_EQ(read("a"), "short");
}

TEST_P(FileSystemConformance, WhatIsNotThereIsAnErrno) {
  EXPECT_EQ(files().open(path("none")).error_number, ENOENT);
  EXPECT_EQ(files().create(path("none/a")).error_number, ENOENT);
  EXPECT_EQ(files().make_directory(path("none/a")), ENOENT);
  EXPECT_EQ(files().rename(path("none"), path("a")), ENOENT);
  EXPECT_EQ(files().sync_directory(path("none")), ENOENT);
  EXPECT_EQ(files().remove(path("none")), 0);
  EXPECT_THAT(files().list(path("none")), IsEmpty());
  EXPECT_FALSE(files().exists(path("none")));
}

TEST_P(FileSystemConformance, ARenameTakesThePlaceOfAFile) {
  write("a", "new");
  write("b", "old");
  EXPECT_EQ(files().rename(path("a"), path("b")), 0);
  EXPECT_EQ(read("b"), "new");
  EXPECT_THAT(files().list(root_), UnorderedElementsAre("b"));
}

TEST_P(FileSystemConformance, ADirectoryTakesThePlaceOfAnEmptyOneOnly) {
  EXPECT_EQ(files().make_directory(path("full")), 0);
  EXPECT_EQ(files().make_directory(path("full")), EEXIST);
  EXPECT_EQ(files().make_directory(path("other")), 0);
  write("full/a", "x");
  EXPECT_EQ(files().rename(path("other"), path("full")), ENOTEMPTY);
  EXPECT_EQ(files().rename(path("full"), path("other")), 0);
  EXPECT_EQ(read("other/a"), "x");
  write("file", "y");
  EXPECT_EQ(files().rename(path("file"), path("other")), EISDIR);
}

TEST_P(FileSystemConformance, RemovingTakesWhatIsInsideAlong) {
  EXPECT_EQ(files().make_directory(path("a")), 0);
  EXPECT_EQ(files().make_directory(path("a/b")), 0);
  write("a/b/c", "x");
  write("d", "y");
  EXPECT_EQ(files().sync_directory(path("a/b")), 0);
  EXPECT_EQ(files().remove(path("a")), 0);
  EXPECT_THAT(files().list(root_), UnorderedElementsAre("d"));
  EXPECT_EQ(files().remove(path("d")), 0);
  EXPECT_THAT(files().list(root_), IsEmpty());
}

// Nothing can be found out about such a path, not even whether it exists.
TEST(SystemFiles, WhatCannotBeLookedAtIsAnError) {
  const ScratchDirectory scratch;
  const std::string loop = (scratch.path() / "loop").string();
  std::filesystem::create_symlink("loop", loop);
  EXPECT_THROW(system_files().exists(loop), IoError);
  EXPECT_THROW(system_files().exists(loop + "/a"), IoError);
  EXPECT_THROW(system_files().list(loop), IoError);
}

// An open or a read would wait for a writer.
TEST(SystemFiles, APipeIsNoFileToRead) {
  const ScratchDirectory scratch;
  const std::string pipe = (scratch.path() / "pipe").string();
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  EXPECT_EQ(system_files().open(pipe).error_number, EINVAL);
  EXPECT_EQ(system_files().open(scratch.path().string()).error_number, EISDIR);
}

INSTANTIATE_TEST_SUITE_P(Files, FileSystemConformance,
                         ::testing::Values(FilesCase{"system", false}, FilesCase{"virtual", true}),
                         [](const auto& info) { return info.param.name; });

// --- what only the virtual one has ---------------------------------------------------------------

// The number of power cuts, over many seeds, that leave a file in each of these states.
struct Left {
  int synced = 0;   // the synced file, whole
  int whole = 0;    // the file that was not synced, whole
  int partial = 0;  // the file that was not synced, but not all of it
  int none = 0;     // the file that was not synced is gone
};

Left left_after_power_cuts(bool sync_names) {
  Left left;
  for (std::uint64_t seed = 0; seed < 200; ++seed) {
    VirtualFiles files(seed);
    const std::string text = "0123456789";
    for (const char* name : {"/synced", "/unsynced"}) {
      const FileSystem::Opened opened = files.create(name);
      opened.file->append(std::as_bytes(std::span(text.data(), text.size())));
      const bool syncs = std::string(name) == "/synced";
      EXPECT_EQ(syncs ? opened.file->sync() : 0, 0);
    }
    EXPECT_EQ(sync_names ? files.sync_directory("/") : 0, 0);
    files.cut_power_after(0);
    EXPECT_EQ(files.make_directory("/late"), EIO);
    files.lose_what_is_not_durable();
    files.recover();
    left.synced += files.exists("/synced") && read_whole_file(files, "/synced") == text ? 1 : 0;
    if (!files.exists("/unsynced")) {
      ++left.none;
    } else {
      ++(read_whole_file(files, "/unsynced") == text ? left.whole : left.partial);
    }
  }
  return left;
}

TEST(VirtualFiles, AFileIsDurableWithItsContentAndItsName) {
  const Left left = left_after_power_cuts(true);
  EXPECT_EQ(left.synced, 200);
  EXPECT_GT(left.whole, 0);
  EXPECT_GT(left.partial, 100);
  EXPECT_EQ(left.none, 0);
}

TEST(VirtualFiles, WithoutItsNameASyncedFileMayBeGone) {
  const Left left = left_after_power_cuts(false);
  EXPECT_GT(left.synced, 20);
  EXPECT_LT(left.synced, 180);
  EXPECT_GT(left.none, 20);
}

}  // namespace
}  // namespace terrace
