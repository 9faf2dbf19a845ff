#pragma once

#include <string>
#include <vector>

namespace terrace {

struct ChildProgram {
  std::vector<std::string> command;      // the program, found in PATH, and its arguments
  std::vector<std::string> environment;  // "NAME=value", besides our own
  std::vector<int> files = {};           // of ours, that it has open under the same numbers
};

struct ChildOutcome {
  int code = 0;        // its exit code; 127 where it cannot be started
  int signal = 0;      // that ended it
  std::string output;  // standard output and standard error
};

// Runs it to its end, which is the end of the calling thread at the latest, however that ends.
// Throws EnvironmentError where the system has no memory for what it says.
ChildOutcome run_child(const ChildProgram& child);

}  // namespace terrace
