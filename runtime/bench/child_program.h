#pragma once

#include <string>
#include <vector>

namespace terrace {

struct ChildProgram {
  std::vector<std::string> command;      // the program, found in PATH, and its arguments
  std::vector<std::string> environment;  // "NAME=value", besides our own
  std::string output_file;               // standard output and standard error go there
};

// Runs it to its end. Its exit code; 127 where it cannot be started or a signal ended it.
int run_child(const ChildProgram& child);

}  // namespace terrace
