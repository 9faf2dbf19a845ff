#pragma once

#include <string>

#include "base/log.h"

namespace terrace {

// The lock's file in a directory of saved state; it stays there, empty.
inline constexpr const char* kSaveLockFile = "terrace_state.lock";

// The right to save into a directory, which one session of all processes has at a time.
class SaveLock {
 public:
  // Takes the lock without waiting. Throws SessionError (kArgument) where another session is saving
  // there, and IoError. Warns where the file system has no locks.
  SaveLock(const std::string& directory, Log& log);
  ~SaveLock();
  SaveLock(const SaveLock&) = delete;
  SaveLock& operator=(const SaveLock&) = delete;

 private:
  int descriptor_ = -1;
};

}  // namespace terrace
