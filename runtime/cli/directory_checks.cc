#include "runtime/cli/directory_checks.h"

#include <fmt/format.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <optional>
#include <string>
#include <system_error>

#include "base/bytes.h"
#include "base/error.h"
#include "offload/direct_file.h"
#include "offload/directory_place.h"

namespace terrace {
namespace {

using enum CheckStatus;

constexpr std::size_t kFreeSpaceEnough = 16 * kGiB;
constexpr const char* kLocalDrive = "name a directory on a local NVMe drive with --nvme";

// A file of this process in the directory, removed at the end.
class ProbeFile {
 public:
  explicit ProbeFile(const std::string& directory)
      : path_((std::filesystem::path(directory) / fmt::format("terrace-doctor-{}", ::getpid()))
                  .string()),
        file_(path_) {}
  ~ProbeFile() { ::unlink(path_.c_str()); }
  ProbeFile(const ProbeFile&) = delete;
  ProbeFile& operator=(const ProbeFile&) = delete;

  const DirectFile& file() const { return file_; }

 private:
  std::string path_;
  DirectFile file_;
};

// Returns nothing if the path exists and is a directory.
std::optional<MachineCheck> check_presence(const std::string& directory) {
  std::error_code problem;
  if (std::filesystem::is_directory(directory, problem)) return std::nullopt;
  return MachineCheck{"directory", kFail, problem ? problem.message() : "not a directory",
                      "name an existing directory on the drive for the offloaded state"};
}

MachineCheck check_direct(const DirectFile& file) {
  if (file.direct()) {
    return {"direct_io", kOk, fmt::format("alignment {} bytes", file.alignment()), ""};
  }
  return {"direct_io", kWarn, file.remark(),
          "name a directory on a local drive (ext4, xfs) with --nvme"};
}

void add_file_checks(const std::string& directory, std::vector<MachineCheck>& checks) {
  try {
    const ProbeFile probe(directory);
    checks.push_back({"directory", kOk, "files can be created", ""});
    checks.push_back(check_direct(probe.file()));
  } catch (const Error& error) {
    MachineCheck refused = stopped_by(error, "directory");
    refused.status = kFail;
    checks.push_back(refused);
    checks.push_back({"direct_io", kWarn, "unknown: no file can be created", error.remedy()});
  }
}

MachineCheck check_file_system(const std::string& directory) {
  const FileSystemType type = file_system_of(directory);
  switch (type.kind) {
    case FileSystemKind::kMemory:
      return {"file_system", kWarn, type.name + ", which is memory, not a drive", kLocalDrive};
    case FileSystemKind::kOverlay:
      return {"file_system", kWarn,
              type.name + ", the layers of a container: may be memory or a slow drive",
              kLocalDrive};
    case FileSystemKind::kNetwork:
      return {"file_system", kWarn,
              type.name + ", which reaches its drive over a network or through another program",
              kLocalDrive};
    case FileSystemKind::kLocal:
      break;
  }
  return {"file_system", kOk, type.name, ""};
}

MachineCheck check_drive(const std::string& directory) {
  const std::optional<BlockDevice> device = block_device_of(directory);
  if (!device) return {"drive", kOk, "the system does not name the block device", ""};
  const std::string name =
      device->model.empty() ? device->name : fmt::format("{} ({})", device->name, device->model);
  switch (device->kind) {
    case DriveKind::kSolidState:
      return {"drive", kOk, name + ", a solid-state drive", ""};
    case DriveKind::kVirtual:
      return {"drive", kOk, name + ", a virtual drive: the system does not say what is behind it",
              ""};
    case DriveKind::kMemory:
      return {"drive", kWarn, name + ", which is memory", kLocalDrive};
    case DriveKind::kTurns:
      break;
  }
  return {"drive", kWarn, name + ", a rotating drive according to the system", kLocalDrive};
}

// Returns the sum of the SIZEs of all directories on this one's file system; nothing where none has
// a SIZE.
std::optional<std::size_t> asked_beside(const std::string& directory,
                                        std::span<const NvmeDirectory> all) {
  struct stat own = {};
  if (::stat(directory.c_str(), &own) != 0) return std::nullopt;
  std::optional<std::size_t> sum;
  for (const NvmeDirectory& other : all) {
    struct stat facts = {};
    if (!other.budget_bytes || ::stat(other.path.c_str(), &facts) != 0) continue;
    if (facts.st_dev == own.st_dev) sum = sum.value_or(0) + *other.budget_bytes;
  }
  return sum;
}

MachineCheck check_free_space(const std::string& directory, std::span<const NvmeDirectory> all) {
  struct statvfs facts = {};
  if (::statvfs(directory.c_str(), &facts) != 0) {
    throw IoError({.operation = "statvfs", .path = directory, .error_number = errno});
  }
  const std::size_t free_bytes = static_cast<std::size_t>(facts.f_bavail) * facts.f_frsize;
  const std::optional<std::size_t> asked = asked_beside(directory, all);
  const std::string free = format_size(free_bytes);
  if (asked) {
    const bool fits = *asked <= free_bytes;
    return {"free_space", fits ? kOk : kWarn,
            fmt::format("{}; the SIZEs on this file system sum to {}", free, format_size(*asked)),
            fits ? "" : "free some space, lower SIZE, or name a larger drive with --nvme"};
  }
  const bool enough = free_bytes >= kFreeSpaceEnough;
  return {"free_space", enough ? kOk : kWarn, free,
          enough ? "" : "free some space, or name a larger drive with --nvme"};
}

std::vector<MachineCheck> check_directory(const std::string& directory,
                                          std::span<const NvmeDirectory> all) {
  if (const auto absent = check_presence(directory)) return {*absent};
  std::vector<MachineCheck> checks;
  add_file_checks(directory, checks);
  checks.push_back(checked("file_system", [&] { return check_file_system(directory); }));
  // Other file systems have no drive; the check above has warned of that.
  if (checks.back().status == kOk) {
    checks.push_back(checked("drive", [&] { return check_drive(directory); }));
  }
  checks.push_back(checked("free_space", [&] { return check_free_space(directory, all); }));
  return checks;
}

}  // namespace

std::vector<MachineCheck> check_directories(std::span<const NvmeDirectory> directories,
                                            bool asked_for) {
  std::vector<MachineCheck> checks;
  for (const NvmeDirectory& directory : directories) {
    for (MachineCheck& check : check_directory(directory.path, directories)) {
      if (check.status == kFail && !asked_for) check.status = kWarn;
      check.value = fmt::format("{}: {}", directory.path, check.value);
      check.directory = directory.path;
      checks.push_back(std::move(check));
    }
  }
  checks.push_back(
      {"drive_speed", kOk, "not measured by doctor; terrace bench io --nvme DIR measures it", ""});
  return checks;
}

}  // namespace terrace
