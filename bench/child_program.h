#pragma once

#include <string>
#include <vector>

namespace terrace {

struct ChildProgram {
  std::vector<std::string> command;      // the program, found in PATH, and its arguments
  std::vector<std::string> environment;  // "NAME=value", besides our own
  std::vector<int> files = {};           // of ours, which it has open under the same numbers
};

struct ChildOutcome {
  int code = 0;        // its exit code; 127 where it cannot be started
  int signal = 0;      // the signal that ended it
  std::string output;  // standard output and standard error
};

// Runs the child to its end. It ends with the calling thread at the latest, however that ends.
// Throws EnvironmentError if the system has no memory for the child's output.
ChildOutcome run_child(const ChildProgram& child);

}  // namespace terrace
