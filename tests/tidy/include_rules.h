#pragma once

#include <string_view>

#include "tests/tidy/violation.h"

namespace terrace::tidy {

// Checks the order of folders and the seals on vendors' headers (docs/architecture.md). A folder
// includes itself and the folders below it: runtime, parallel, optim, {kernels, offload}, memory,
// base. kernels and offload are siblings. tests, bench, examples and tools stand on top, and no
// other folder includes them.
Violations check_includes(std::string_view path, std::string_view text);

}  // namespace terrace::tidy
