#pragma once

#include <cstdint>

namespace terrace {

// The outcome of asking for the lock of a whole file (flock). The lock lasts until the file's
// descriptor is closed.
struct FileLock {
  enum class Kind : std::uint8_t {
    kTaken,
    kHeldByOther,
    kNotThere,  // the file system has no locks, or the system allows none
  };
  Kind kind = Kind::kTaken;
  int error_number = 0;  // why it is not there
};

// Asks for the lock without waiting.
FileLock try_lock(int descriptor);

}  // namespace terrace
