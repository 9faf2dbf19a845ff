#include "runtime/cli/standard_output.h"

#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>

#include "base/error.h"

namespace terrace {

void print_now(std::string_view text) {
  if (std::fwrite(text.data(), 1, text.size(), stdout) == text.size() && std::fflush(stdout) == 0) {
    return;
  }
  throw IoError({.operation = "write", .path = "standard output", .error_number = errno});
}

bool erases_lines(int descriptor) {
  const char* const terminal = std::getenv("TERM");
  return ::isatty(descriptor) == 1 && terminal != nullptr && std::string_view(terminal) != "dumb";
}

bool takes_colours(int descriptor) {
  const char* const refused = std::getenv("NO_COLOR");
  return erases_lines(descriptor) && (refused == nullptr || *refused == '\0');
}

}  // namespace terrace
