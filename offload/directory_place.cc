#include "offload/directory_place.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <sys/sysmacros.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <filesystem>
#include <fstream>
#include <string_view>
#include <vector>

#include "base/error.h"

namespace terrace {
namespace {

namespace fs = std::filesystem;

struct KnownType {
  std::uint32_t magic;
  std::string_view name;
  FileSystemKind kind;
};

// linux/magic.h lacks many of these types.
constexpr auto kKnownTypes = std::to_array<KnownType>({
    {0xEF53, "ext4", FileSystemKind::kLocal},  // ext2 and ext3 have the same number
    {0x58465342, "xfs", FileSystemKind::kLocal},
    {0x9123683E, "btrfs", FileSystemKind::kLocal},
    {0xF2F52010, "f2fs", FileSystemKind::kLocal},
    {0x2FC12FC1, "zfs", FileSystemKind::kLocal},
    {0xCA451A4E, "bcachefs", FileSystemKind::kLocal},
    {0x3153464A, "jfs", FileSystemKind::kLocal},
    {0x7366746E, "ntfs3", FileSystemKind::kLocal},
    {0x2011BAB0, "exfat", FileSystemKind::kLocal},
    {0x4D44, "vfat", FileSystemKind::kLocal},
    {0x01021994, "tmpfs", FileSystemKind::kMemory},
    {0x858458F6, "ramfs", FileSystemKind::kMemory},
    {0x958458F6, "hugetlbfs", FileSystemKind::kMemory},
    {0x794C7630, "overlay", FileSystemKind::kOverlay},
    {0x61756673, "aufs", FileSystemKind::kOverlay},
    {0x6969, "nfs", FileSystemKind::kNetwork},
    {0xFF534D42, "cifs", FileSystemKind::kNetwork},
    {0xFE534D42, "smb2", FileSystemKind::kNetwork},
    {0x517B, "smb", FileSystemKind::kNetwork},
    {0x65735546, "fuse", FileSystemKind::kNetwork},
    {0x01021997, "9p", FileSystemKind::kNetwork},
    {0x0BD00BD0, "lustre", FileSystemKind::kNetwork},
    {0x00C36400, "ceph", FileSystemKind::kNetwork},
    {0x47504653, "gpfs", FileSystemKind::kNetwork},
    {0x19830326, "beegfs", FileSystemKind::kNetwork},
    {0xAAD7AAEA, "panfs", FileSystemKind::kNetwork},
    {0x5346414F, "afs", FileSystemKind::kNetwork},
    {0x01161970, "gfs2", FileSystemKind::kNetwork},
    {0x7461636F, "ocfs2", FileSystemKind::kNetwork},
    {0x786F4256, "vboxsf", FileSystemKind::kNetwork},
});

// Returns the first line of a small file, without the spaces that pad a model's field.
std::string line_of(const fs::path& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  line.erase(line.find_last_not_of(" \t") + 1);
  return line.substr(std::min(line.find_first_not_of(" \t"), line.size()));
}

bool is_memory(std::string_view name) {
  return name.starts_with("zram") || (name.starts_with("ram") && name.size() > 3);
}

// Virtio and Xen report every disk as rotating. A loop device is a file, wherever that file lies.
bool is_virtual(const std::string& path, std::string_view name) {
  return path.find("/virtio") != path.npos || path.find("/vbd-") != path.npos ||
         name.starts_with("loop");
}

DriveKind kind_of(const fs::path& device) {
  const std::string name = device.filename().string();
  if (is_memory(name)) return DriveKind::kMemory;
  if (is_virtual(device.string(), name)) return DriveKind::kVirtual;
  const std::string turns = line_of(device / "queue" / "rotational");
  if (turns.empty()) return DriveKind::kVirtual;
  return turns == "0" ? DriveKind::kSolidState : DriveKind::kTurns;
}

// Returns the devices that this one is made of.
std::vector<fs::path> parts_of(const fs::path& device) {
  std::vector<fs::path> parts;
  std::error_code none;
  for (const auto& part : fs::directory_iterator(device / "slaves", none)) {
    const fs::path path = fs::canonical(part.path(), none);
    if (!none) parts.push_back(path);
  }
  std::ranges::sort(parts, {}, [](const fs::path& part) { return part.filename(); });
  return parts;
}

BlockDevice describe(const fs::path& path) {
  std::error_code none;
  const fs::path device = fs::exists(path / "partition", none) ? path.parent_path() : path;
  BlockDevice described = {.name = device.filename().string(),
                           .model = line_of(device / "device" / "model"),
                           .kind = kind_of(device)};
  const std::vector<fs::path> parts = parts_of(device);
  if (parts.empty()) return described;
  described.kind = DriveKind::kSolidState;
  std::vector<std::string> models;
  for (const fs::path& part : parts) {
    const BlockDevice one = describe(part);
    described.kind = std::max(described.kind, one.kind);
    models.push_back(one.model.empty() ? one.name : fmt::format("{} {}", one.name, one.model));
  }
  described.model = fmt::format("{}", fmt::join(models, ", "));
  return described;
}

}  // namespace

FileSystemType file_system_type(std::uint32_t magic) {
  const auto* known = std::ranges::find(kKnownTypes, magic, &KnownType::magic);
  if (known == kKnownTypes.end()) return {.name = fmt::format("type {:#x}", magic)};
  return {.name = std::string(known->name), .kind = known->kind};
}

FileSystemType file_system_of(const std::string& directory) {
  struct statfs facts = {};
  if (::statfs(directory.c_str(), &facts) != 0) {
    throw IoError({.operation = "statfs", .path = directory, .error_number = errno});
  }
  return file_system_type(static_cast<std::uint32_t>(facts.f_type));
}

std::optional<BlockDevice> block_device(unsigned major_number, unsigned minor_number,
                                        const std::string& sys) {
  std::error_code none;
  const fs::path path =
      fs::canonical(fmt::format("{}/dev/block/{}:{}", sys, major_number, minor_number), none);
  if (none) return std::nullopt;
  return describe(path);
}

std::optional<BlockDevice> block_device_of(const std::string& directory) {
  struct stat facts = {};
  if (::stat(directory.c_str(), &facts) != 0) {
    throw IoError({.operation = "stat", .path = directory, .error_number = errno});
  }
  return block_device(major(facts.st_dev), minor(facts.st_dev));
}

}  // namespace terrace
