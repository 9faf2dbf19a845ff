#include "offload/space_check.h"

#include <fmt/format.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/statvfs.h>

#include <cerrno>
#include <set>

#include "base/bytes.h"
#include "base/error.h"

namespace terrace {
namespace {

void check_budget(const SpaceNeed& need) {
  if (!need.budget_bytes || need.need_bytes <= *need.budget_bytes) return;
  throw OutOfMemory(fmt::format("directory {}: {} are needed, but its budget is {}", need.directory,
                                format_size(need.need_bytes), format_size(*need.budget_bytes)),
                    "raise the budget, or name more directories");
}

// Checks a limit that would otherwise be found out in the middle of the run.
void check_file_limit(const SpaceNeed& need) {
  struct rlimit limit = {};
  if (::getrlimit(RLIMIT_FSIZE, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return;
  if (need.need_bytes <= limit.rlim_cur) return;
  throw OutOfMemory(
      fmt::format("directory {}: a file of {} is needed, but the file size limit is {}",
                  need.directory, format_size(need.need_bytes), format_size(limit.rlim_cur)),
      "raise it with ulimit -f");
}

// Returns the need of all directories that share the file system `device`.
std::uint64_t need_of_file_system(std::span<const SpaceNeed> needs, dev_t device) {
  std::uint64_t sum = 0;
  for (const SpaceNeed& need : needs) {
    struct stat facts = {};
    if (::stat(need.directory.c_str(), &facts) == 0 && facts.st_dev == device) {
      sum += need.need_bytes;
    }
  }
  return sum;
}

struct FileSystemSpace {
  dev_t device = 0;
  std::uint64_t free_bytes = 0;
};

FileSystemSpace space_of(const std::string& directory) {
  struct stat facts = {};
  struct statvfs space = {};
  if (::stat(directory.c_str(), &facts) != 0 || ::statvfs(directory.c_str(), &space) != 0) {
    throw IoError({.operation = "statvfs", .path = directory, .error_number = errno});
  }
  return {facts.st_dev, std::uint64_t{space.f_bavail} * space.f_frsize};
}

void check_free(std::span<const SpaceNeed> needs, const SpaceNeed& need) {
  const auto [device, free_bytes] = space_of(need.directory);
  const std::uint64_t need_bytes = need_of_file_system(needs, device);
  if (need_bytes <= free_bytes) return;
  throw OutOfMemory(fmt::format("directory {}: {} are needed on its file system, but only {} are "
                                "free",
                                need.directory, format_size(need_bytes), format_size(free_bytes)),
                    "free space, or name a directory on a larger drive");
}

}  // namespace

void check_space(std::span<const SpaceNeed> needs) {
  for (const SpaceNeed& need : needs) {
    check_budget(need);
    check_file_limit(need);
    check_free(needs, need);
  }
}

std::uint64_t free_space(std::span<const std::string> directories) {
  std::uint64_t free_bytes = 0;
  std::set<dev_t> counted;
  for (const std::string& directory : directories) {
    const FileSystemSpace space = space_of(directory);
    if (counted.insert(space.device).second) free_bytes += space.free_bytes;
  }
  return free_bytes;
}

}  // namespace terrace
