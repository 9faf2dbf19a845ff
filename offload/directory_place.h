#pragma once

#include <cstdint>
#include <optional>
#include <string>

// What a directory lies on, as the system tells it. Nothing is measured.
namespace terrace {

enum class FileSystemKind : std::uint8_t {
  kLocal,    // on a block device of this machine, as far as is known
  kMemory,   // its files take host memory
  kOverlay,  // layers of a container: what holds them is not told
  kNetwork,  // served over a network, or by another program
};

struct FileSystemType {
  std::string name;  // "ext4"; "type 0x1234" for one without a name here
  FileSystemKind kind = FileSystemKind::kLocal;
};

// The type that statfs(2) tells by number.
FileSystemType file_system_type(std::uint32_t magic);
// Throws IoError where the directory cannot be looked at.
FileSystemType file_system_of(const std::string& directory);

enum class DriveKind : std::uint8_t {
  kSolidState,
  kVirtual,  // of a host that does not tell what is behind it, or the system does not say
  kMemory,
  kTurns,
};

struct BlockDevice {
  std::string name;   // "nvme0n1", whatever the partition
  std::string model;  // empty where it has none; of several, all of them
  DriveKind kind = DriveKind::kVirtual;
};

// What `sys` (of which tests have their own) tells of a device number; nothing where there is no
// such block device. One that is made of others (device mapper, RAID) is the worst of them.
std::optional<BlockDevice> block_device(unsigned major_number, unsigned minor_number,
                                        const std::string& sys = "/sys");
// Nothing for a file system without one of its own. Throws IoError as file_system_of() does.
std::optional<BlockDevice> block_device_of(const std::string& directory);

}  // namespace terrace
