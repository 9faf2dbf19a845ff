#include "runtime/session/save_lock.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "base/error.h"
#include "base/file_lock.h"
#include "runtime/session/session_error.h"

namespace terrace {

SaveLock::SaveLock(const std::string& directory, Log& log) {
  const std::string path = directory + "/" + kSaveLockFile;
  descriptor_ = ::open(path.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0666);
  if (descriptor_ < 0) {
    throw IoError({.operation = "open", .path = path, .error_number = errno},
                  "state is saved into a directory that is writable");
  }
  const FileLock lock = try_lock(descriptor_);
  if (lock.kind == FileLock::Kind::kHeldByOther) {
    ::close(descriptor_);
    throw SessionError(SessionProblem::kArgument,
                       fmt::format("another session is saving into {}", directory),
                       "save on one rank only, or give each rank its own directory");
  }
  if (lock.kind == FileLock::Kind::kNotThere) {
    log.warning(
        fmt::format("{} cannot be locked: {}; make sure that no other session saves into it",
                    directory, std::strerror(lock.error_number)));
  }
}

SaveLock::~SaveLock() {
  // A close alone does not unlock it: a process that was forked in the meantime has the descriptor,
  // too.
  ::flock(descriptor_, LOCK_UN);
  ::close(descriptor_);
}

}  // namespace terrace
