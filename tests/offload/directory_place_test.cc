#include "offload/directory_place.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "base/error.h"
#include "tests/offload/store_fixture.h"

namespace terrace {
namespace {

TEST(FileSystemType, KnowsWhatIsNoLocalDrive) {
  EXPECT_EQ(file_system_type(0xEF53).name, "ext4");
  EXPECT_EQ(file_system_type(0xEF53).kind, FileSystemKind::kLocal);
  EXPECT_EQ(file_system_type(0x01021994).kind, FileSystemKind::kMemory);
  EXPECT_EQ(file_system_type(0x794C7630).kind, FileSystemKind::kOverlay);
  EXPECT_EQ(file_system_type(0x6969).kind, FileSystemKind::kNetwork);
  EXPECT_EQ(file_system_type(0xFF534D42).name, "cifs");
  EXPECT_EQ(file_system_type(0x1234).name, "type 0x1234");
}

TEST(FileSystemType, IsThatOfTheDirectory) {
  EXPECT_EQ(file_system_of("/proc").name, "type 0x9fa0");
  EXPECT_FALSE(block_device_of("/proc").has_value());
  EXPECT_THROW(file_system_of("/proc/none"), IoError);
  EXPECT_THROW(block_device_of("/proc/none"), IoError);
}

// Gives each test a /sys of its own.
class BlockDeviceTest : public ::testing::Test {
 protected:
  // Makes a device below /sys/devices, and the link from its number.
  void add(const std::string& path, const std::string& number, const std::string& turns) const {
    write(path + "/queue/rotational", turns);
    std::filesystem::create_directories(sys_ / "dev/block");
    std::filesystem::create_directory_symlink(device(path), sys_ / "dev/block" / number);
  }
  void write(const std::string& path, const std::string& line) const {
    std::filesystem::create_directories(device(path).parent_path());
    std::ofstream(device(path)) << line << '\n';
  }
  void add_part(const std::string& path, const std::string& part) const {
    const std::filesystem::path parts = device(path) / "slaves";
    std::filesystem::create_directories(parts);
    std::filesystem::create_directory_symlink(device(part), parts / device(part).filename());
  }
  std::filesystem::path device(const std::string& path) const { return sys_ / "devices" / path; }

  BlockDevice of(unsigned major_number, unsigned minor_number) const {
    const auto found = block_device(major_number, minor_number, sys_.string());
    EXPECT_TRUE(found.has_value());
    return found.value_or(BlockDevice{});
  }

  ScratchDirectory scratch_;
  const std::filesystem::path sys_ = scratch_.path() / "sys";
};

TEST_F(BlockDeviceTest, APartitionIsItsDrive) {
  add("pci0/nvme/nvme0/nvme0n1", "259:0", "0");
  write("pci0/nvme/nvme0/nvme0n1/device/model", "Fast Drive 1TB   ");
  add("pci0/nvme/nvme0/nvme0n1/nvme0n1p2", "259:2", "");
  write("pci0/nvme/nvme0/nvme0n1/nvme0n1p2/partition", "2");
  for (const unsigned minor_number : {0U, 2U}) {
    EXPECT_EQ(of(259, minor_number).name, "nvme0n1");
    EXPECT_EQ(of(259, minor_number).model, "Fast Drive 1TB");
    EXPECT_EQ(of(259, minor_number).kind, DriveKind::kSolidState);
  }
  EXPECT_FALSE(block_device(0, 27, sys_.string()).has_value());
}

TEST_F(BlockDeviceTest, ADiskThatTurnsIsTold) {
  add("pci0/ata1/block/sda", "8:0", "1");
  EXPECT_EQ(of(8, 0).kind, DriveKind::kTurns);
  EXPECT_EQ(of(8, 0).model, "");
}

// Virtual disks report that they rotate, whatever is behind them.
TEST_F(BlockDeviceTest, AVirtualDiskIsNotTakenForOneThatTurns) {
  add("pci0/virtio1/block/vda", "254:0", "1");
  add("vbd-51712/block/xvda", "202:0", "1");
  add("virtual/block/loop0", "7:0", "1");
  EXPECT_EQ(of(254, 0).kind, DriveKind::kVirtual);
  EXPECT_EQ(of(202, 0).kind, DriveKind::kVirtual);
  EXPECT_EQ(of(7, 0).kind, DriveKind::kVirtual);
}

TEST_F(BlockDeviceTest, ADiskInMemoryIsTold) {
  add("virtual/block/zram0", "253:0", "0");
  add("virtual/block/ram0", "1:0", "0");
  EXPECT_EQ(of(253, 0).kind, DriveKind::kMemory);
  EXPECT_EQ(of(1, 0).kind, DriveKind::kMemory);
}

TEST_F(BlockDeviceTest, OneThatIsMadeOfOthersIsTheWorstOfThem) {
  add("pci0/nvme/nvme0/nvme0n1", "259:0", "0");
  write("pci0/nvme/nvme0/nvme0n1/device/model", "Fast Drive");
  add("pci0/ata1/block/sda", "8:0", "1");
  add("virtual/block/dm-0", "252:0", "1");
  add_part("virtual/block/dm-0", "pci0/nvme/nvme0/nvme0n1");
  EXPECT_EQ(of(252, 0).kind, DriveKind::kSolidState);
  add_part("virtual/block/dm-0", "pci0/ata1/block/sda");
  EXPECT_EQ(of(252, 0).kind, DriveKind::kTurns);
  EXPECT_EQ(of(252, 0).name, "dm-0");
  EXPECT_EQ(of(252, 0).model, "nvme0n1 Fast Drive, sda");
}

}  // namespace
}  // namespace terrace
