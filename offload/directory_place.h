#pragma once

#include <cstdint>
#include <optional>
#include <string>

// Reports the file system and the drive of a directory, as the system describes them. Nothing is
// measured.
namespace terrace {

enum class FileSystemKind : std::uint8_t {
  kLocal,    // on a block device of this machine, as far as is known
  kMemory,   // its files take host memory
  kOverlay,  // layers of a container: the system does not tell what holds them
  kNetwork,  // served over a network, or by another program
};

struct FileSystemType {
  std::string name;  // e.g. "ext4"; "type 0x1234" for an unknown one
  FileSystemKind kind = FileSystemKind::kLocal;
};

// Returns the type for a number that statfs(2) reports.
FileSystemType file_system_type(std::uint32_t magic);
// Throws IoError where the directory cannot be examined.
FileSystemType file_system_of(const std::string& directory);

enum class DriveKind : std::uint8_t {
  kSolidState,
  kVirtual,  // of a host that does not tell what is behind it, or of unknown kind
  kMemory,
  kTurns,
};

struct BlockDevice {
  std::string name;   // "nvme0n1", whatever the partition
  std::string model;  // empty where it has none; all models if several
  DriveKind kind = DriveKind::kVirtual;
};

// Returns what `sys` says about a device number (tests have a `sys` of their own); nothing where
// there is no such block device. A device made of others (device mapper, RAID) counts as the worst
// of them.
std::optional<BlockDevice> block_device(unsigned major_number, unsigned minor_number,
                                        const std::string& sys = "/sys");
// Returns nothing for a file system without a block device. Throws IoError as file_system_of()
// does.
std::optional<BlockDevice> block_device_of(const std::string& directory);

}  // namespace terrace
