#include "base/temporary_directory.h"

#include <unistd.h>

#include <cstdlib>

namespace terrace {

std::string temporary_directory() {
  const char* const named = std::getenv("TMPDIR");
  if (named != nullptr && *named != '\0') return named;
  const bool is_writable = ::access("/var/tmp", R_OK | W_OK | X_OK) == 0;
  return is_writable ? "/var/tmp" : "/tmp";
}

}  // namespace terrace
