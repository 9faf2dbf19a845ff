#include "base/not_made.h"

#include <fmt/format.h>
#include <sys/statvfs.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <system_error>

#include "base/error.h"

namespace terrace {
namespace {

// Names what is used up on the file system that `path` would be on.
std::string what_is_full(const std::string& path, int error_number) {
  if (error_number == EDQUOT) return "the disk quota of this user is used up";
  std::filesystem::path place = path;
  std::error_code ignored;
  if (!std::filesystem::is_directory(place, ignored)) place = place.parent_path();
  struct statvfs space = {};
  if (::statvfs(place.empty() ? "." : place.c_str(), &space) == 0) {
    if (space.f_files != 0 && space.f_favail == 0) {
      return "no inodes are free on its file system (df -i)";
    }
    if (space.f_bavail == 0) return "no blocks are free on its file system (df)";
  }
  return std::strerror(error_number);
}

}  // namespace

void throw_not_made(const NotMade& asked, int error_number) {
  const auto refused = [&asked](const std::string& reason) {
    return fmt::format("{} {} cannot be created: {}", asked.what, asked.path, reason);
  };
  switch (error_number) {
    case ENOSPC:
    case EDQUOT:
    case EMLINK:
      throw OutOfMemory(refused(what_is_full(asked.path, error_number)),
                        "remove files there, or name a directory on another drive");
    case ENOMEM:
      throw OutOfMemory(refused(std::strerror(error_number)), "free memory on this machine");
    case EMFILE:
    case ENFILE:
      throw EnvironmentError(refused(std::strerror(error_number)),
                             "raise the limit on open files (ulimit -n)");
    case ENOSYS:
    case EOPNOTSUPP:
      throw EnvironmentError(refused(std::strerror(error_number)),
                             "name a directory on another file system, or allow it in this "
                             "process's sandbox");
    case EIO:
    case ENXIO:
    case ENODEV:
    case ESTALE:
    case ETIMEDOUT:
    case EUCLEAN:
      throw IoError({.operation = "create", .path = asked.path, .error_number = error_number});
    default:
      throw ConfigError(refused(std::strerror(error_number)), asked.remedy);
  }
}

}  // namespace terrace
