#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "tests/tidy/violation.h"

namespace terrace::tidy {

// The format that count_classes() reads: arguments of Universal Ctags, without the files.
inline constexpr std::string_view kCtagsArguments =
    "-x --language-force=C++ --c++-kinds=+pm --_xformat='%{kind}\t%{scopeKind}\t%{scope}\t%{name}'";

struct ClassSize {
  std::string name;
  int members = 0;
  int methods = 0;  // of different names
};

// Returns the classes that ctags has found, sorted by name.
std::vector<ClassSize> count_classes(std::string_view ctags_output);

// Returns the classes that are too large. Data without methods may have any number of members.
// TierRuntime is the public face of the engine and may be large, too.
Violations check_class_sizes(const std::vector<ClassSize>& classes);

}  // namespace terrace::tidy
