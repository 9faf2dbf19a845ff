#pragma once

#include <string>
#include <vector>

namespace terrace {

// One thing that training depends on, as this process finds it.
struct MachineCheck {
  std::string name;    // "io_uring"
  bool ok = true;      // false: training works, and would work better otherwise
  std::string value;   // what was found
  std::string remedy;  // how to get more; empty where all is well
};

// Looks at processor, memory, limits and drives. `directory` is tried out with a small file that is
// removed. Throws ConfigError for a directory that is not there or not writable.
std::vector<MachineCheck> check_machine(const std::string& directory);

}  // namespace terrace
