#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace terrace::tidy {

// The parameter list of a function that is declared or defined, or of a lambda.
struct ParameterList {
  int line = 1;      // where the list opens
  std::string name;  // of the function; "lambda" of a lambda
  int parameters = 0;

  bool operator==(const ParameterList&) const = default;
};

// Returns the parameter lists of a C++ or CUDA source: of functions, constructors, operators,
// kernels and lambdas. Lambdas come first; within each group the order is the text's. Calls,
// template parameters and the lists inside the types of parameters, variables and members do not
// count. Reads brackets and the text before them, not the grammar. It is right for code that
// compiles. A variable that is initialised with parentheses outside of functions looks like a
// function; write it with braces.
std::vector<ParameterList> parameter_lists(std::string_view text);

}  // namespace terrace::tidy
