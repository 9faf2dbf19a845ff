#pragma once

#include <cstdint>

namespace terrace {

// The lock of a whole file (flock), which lasts until its descriptor is closed.
struct FileLock {
  enum class Kind : std::uint8_t {
    kTaken,
    kHeldByOther,
    kNotThere,  // the file system has no locks, or the system allows none
  };
  Kind kind = Kind::kTaken;
  int error_number = 0;  // why it is not there
};

// Asks for it without waiting.
FileLock try_lock(int descriptor);

}  // namespace terrace
