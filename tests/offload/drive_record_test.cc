#include "offload/drive_record.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>

#include "tests/offload/store_fixture.h"

namespace terrace {
namespace {

constexpr const char* kKey = "vda fs ef53, 6.18, io_uring";
const DriveFacts kFacts = {
    .shape = {512 * kKiB, 16}, .read_gb_per_s = 2.0625, .write_gb_per_s = 2.7};

class DriveRecordTest : public ::testing::Test {
 protected:
  // Keeps facts and returns the path of the file.
  std::string kept() const {
    DriveRecord record(directory_, kKey);
    EXPECT_FALSE(record.facts().has_value());
    EXPECT_TRUE(record.keep(kFacts));
    return record.path();
  }
  static std::string content(const std::string& path) {
    std::ostringstream text;
    text << std::ifstream(path).rdbuf();
    return text.str();
  }
  static void replace(const std::string& path, const std::string& text) {
    std::ofstream(path, std::ios::trunc) << text;
  }
  // Returns whether the next start finds the facts; then keeps them again.
  bool found() const {
    DriveRecord record(directory_, kKey);
    const bool found = record.facts().has_value();
    EXPECT_TRUE(record.keep(kFacts));
    EXPECT_EQ(record.facts(), kFacts);
    return found;
  }

  ScratchDirectory scratch_;
  const std::string directory_ = scratch_.path() / "cache" / "terrace";  // not there yet
};

TEST_F(DriveRecordTest, FactsComeBackAsTheyWere) {
  kept();
  const DriveRecord record(directory_, kKey);
  EXPECT_EQ(record.facts(), kFacts);
}

TEST_F(DriveRecordTest, WhoeverOnlyReadsMakesAndKeepsNothing) {
  DriveRecord absent(directory_, kKey, DriveRecord::Use::kRead);
  EXPECT_FALSE(absent.facts().has_value());
  EXPECT_FALSE(absent.keep(kFacts));
  EXPECT_FALSE(std::filesystem::exists(absent.path()));
  kept();
  DriveRecord reader(directory_, kKey, DriveRecord::Use::kRead);
  EXPECT_EQ(reader.facts(), kFacts);
  EXPECT_FALSE(reader.keep({}));
  EXPECT_EQ(reader.facts(), kFacts);
}

TEST_F(DriveRecordTest, AnotherDriveOrKernelHasAnother) {
  const std::string path = kept();
  DriveRecord other(directory_, "vda fs ef53, 6.19, io_uring");
  EXPECT_NE(other.path(), path);
  EXPECT_FALSE(other.facts().has_value());
}

TEST_F(DriveRecordTest, WhatIsDamagedIsNotTaken) {
  const std::string path = kept();
  const std::string whole = content(path);
  for (std::size_t at = 0; at < whole.size(); ++at) {
    std::string damaged = whole;
    damaged[at] ^= 1;
    replace(path, damaged);
    EXPECT_FALSE(DriveRecord(directory_, kKey).facts().has_value()) << damaged;
    replace(path, whole.substr(0, at));
    EXPECT_FALSE(DriveRecord(directory_, kKey).facts().has_value()) << at;
  }
  replace(path, whole + "more\n");
  EXPECT_FALSE(found());
  EXPECT_TRUE(found());
}

TEST_F(DriveRecordTest, WhatIsForeignIsNotTaken) {
  const std::string path = kept();
  for (const std::string& foreign :
       {std::string(), std::string("\0\xff\x80", 3), std::string(100000, 'x'),
        std::string("terrace drive 1\n") + kKey + "\n1 2 3 4\n", content(path) + content(path)}) {
    replace(path, foreign);
    EXPECT_FALSE(found());
  }
  // A record of another drive lies at the place of this drive's record.
  DriveRecord other(directory_, "another");
  ASSERT_TRUE(other.keep(kFacts));
  replace(path, content(other.path()));
  EXPECT_FALSE(found());
}

TEST_F(DriveRecordTest, FactsThatCannotBeAreNotTaken) {
  const std::string path = kept();
  for (const DriveFacts& wrong : {DriveFacts{{kMiB + 1, 8}, 1, 1}, DriveFacts{{kMiB, 0}, 1, 1},
                                  DriveFacts{{kMiB, 8}, 0, 1}, DriveFacts{{kMiB, 8}, 1, -1},
                                  DriveFacts{{4096, 8}, 1, 1}, DriveFacts{{kMiB, 5000}, 1, 1}}) {
    DriveRecord record(directory_, kKey);
    ASSERT_TRUE(record.keep(wrong));
    EXPECT_FALSE(record.facts().has_value());
  }
}

TEST_F(DriveRecordTest, WhereNothingCanBeKeptThatIsSaid) {
  DriveRecord nowhere("", kKey);
  EXPECT_FALSE(nowhere.keep(kFacts));
  EXPECT_FALSE(nowhere.facts().has_value());
  std::ofstream(scratch_.path() / "file") << "x";
  DriveRecord in_a_file(scratch_.path() / "file", kKey);
  EXPECT_FALSE(in_a_file.keep(kFacts));
  // A link could lead to a file of another user.
  const std::string path = kept();
  std::filesystem::rename(path, path + ".moved");
  std::filesystem::create_symlink(path + ".moved", path);
  DriveRecord link(directory_, kKey);
  EXPECT_FALSE(link.keep(kFacts));
}

TEST(DeviceOf, DirectoriesOfOneFileSystemShareIt) {
  const ScratchDirectory scratch;
  const std::string a = scratch.make("a");
  const std::string b = scratch.make("b");
  EXPECT_EQ(device_of(a), device_of(b));
  EXPECT_EQ(drive_key(a), drive_key(b));
  EXPECT_FALSE(device_of(a).empty());
  EXPECT_NE(device_of(a), device_of("/proc"));
}

}  // namespace
}  // namespace terrace
