#pragma once

#include <string>

namespace terrace {

// A file or directory that was to be made.
struct NotMade {
  std::string what;  // "the run directory"
  std::string path;
  std::string remedy;  // for a path that is wrong
};

// Throws what the system's refusal (an errno) to make it means: OutOfMemory where the file system
// is full, naming what is used up (blocks, inodes, a quota); EnvironmentError where this process
// may not make more, or none at all; IoError where a device failed; else ConfigError: the path is
// wrong.
[[noreturn]] void throw_not_made(const NotMade& asked, int error_number);

}  // namespace terrace
