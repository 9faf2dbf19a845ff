#pragma once

#include <string_view>
#include <vector>

namespace terrace::tidy {

// A function with a body. Lambdas and local types count as part of the function that contains them.
struct FunctionExtent {
  int first_line = 1;  // where its declaration begins
  int last_line = 1;   // of the closing brace

  int lines() const { return last_line - first_line + 1; }
  bool operator==(const FunctionExtent&) const = default;
};

// Returns the functions of a C++ source, in order. Reads braces and the text before them, not the
// grammar. It is right for code that clang-format has formatted and that compiles.
std::vector<FunctionExtent> function_extents(std::string_view text);

}  // namespace terrace::tidy
