#include "bench/drive_check.h"

#include <sys/statvfs.h>

#include <cerrno>

#include "base/bytes.h"
#include "base/error.h"
#include "base/temporary_directory.h"
#include "offload/directory_place.h"
#include "offload/job_directory.h"
#include "offload/space_check.h"

namespace terrace {
namespace {

std::string_view kind_of(DriveKind kind) {
  switch (kind) {
    case DriveKind::kSolidState:
      return "solid state";
    case DriveKind::kVirtual:
      return "virtual or unknown";
    case DriveKind::kMemory:
      return "memory";
    case DriveKind::kTurns:
      break;
  }
  return "turns";
}

}  // namespace

std::vector<std::string> bench_directories(const BenchOptions& options) {
  return options.nvme.empty() ? std::vector<std::string>{temporary_directory()} : options.nvme;
}

void check_drives(const BenchOptions& options, std::uint64_t total_bytes, Log& log) {
  const std::vector<std::string> directories = bench_directories(options);
  std::vector<SpaceNeed> needs;
  for (const std::string& directory : directories) {
    // Only making a job's directory can tell whether this is possible. It also frees space that
    // dead jobs have left.
    const JobDirectory tried(directory, log);
    needs.push_back({.directory = directory,
                     .need_bytes = divide_up(total_bytes, std::uint64_t{directories.size()}),
                     .budget_bytes = {}});
  }
  check_space(needs);
}

DrivePlace drive_place(const std::string& directory) {
  DrivePlace place;
  const FileSystemType type = file_system_of(directory);
  place.file_system = type.name;
  place.is_memory = type.kind == FileSystemKind::kMemory;
  if (const auto device = block_device_of(directory)) {
    place.device = device->name;
    place.model = device->model;
    place.kind = kind_of(device->kind);
    place.is_memory = place.is_memory || device->kind == DriveKind::kMemory;
  }
  struct statvfs facts = {};
  if (::statvfs(directory.c_str(), &facts) != 0) {
    throw IoError({.operation = "statvfs", .path = directory, .error_number = errno});
  }
  place.free_bytes = std::uint64_t{facts.f_bavail} * facts.f_frsize;
  place.total_bytes = std::uint64_t{facts.f_blocks} * facts.f_frsize;
  return place;
}

}  // namespace terrace
