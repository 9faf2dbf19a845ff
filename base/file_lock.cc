#include "base/file_lock.h"

#include <sys/file.h>

#include <cerrno>

namespace terrace {

FileLock try_lock(int descriptor) {
  int error_number = EINTR;
  while (error_number == EINTR) {
    error_number = ::flock(descriptor, LOCK_EX | LOCK_NB) == 0 ? 0 : errno;
  }
  if (error_number == 0) return {FileLock::Kind::kTaken};
  if (error_number == EWOULDBLOCK) return {FileLock::Kind::kHeldByOther};
  return {FileLock::Kind::kNotThere, error_number};
}

}  // namespace terrace
