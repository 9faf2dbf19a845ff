#include "base/check.h"

#include <cstdio>
#include <cstdlib>

namespace terrace {

void check_failed(const char* file, int line, const char* condition, const std::string& operands) {
  std::fprintf(stderr, "%s:%d: broken invariant: %s (%s)\n", file, line, condition,
               operands.c_str());
  std::fflush(stderr);
  std::abort();
}

}  // namespace terrace
