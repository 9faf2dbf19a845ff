#pragma once

#include <string>

namespace terrace {

// A file or directory that could not be made.
struct NotMade {
  std::string what;  // "the run directory"
  std::string path;
  std::string remedy;  // for a path that is wrong
};

// Throws the error that the errno of the system's refusal means: OutOfMemory if the file system is
// full, naming what is used up (blocks, inodes, a quota); EnvironmentError if this process may not
// make more files, or none at all; IoError if a device failed; else ConfigError, because the path
// is wrong.
[[noreturn]] void throw_not_made(const NotMade& asked, int error_number);

}  // namespace terrace
