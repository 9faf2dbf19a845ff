#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "tests/tidy/violation.h"

namespace terrace::tidy {

// Checks lengths, limits and bans that can be seen in the text of one C++ source, CMake file or
// script. CUDA sources (.cu) may have long functions and files; nothing else is excepted.
Violations check_source(std::string_view path, std::string_view text);

// Checks that file names are snake_case and that no folder has a name that says nothing.
Violations check_names(const std::vector<std::string>& folders,
                       const std::vector<std::string>& files);

}  // namespace terrace::tidy
