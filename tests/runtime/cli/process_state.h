#pragma once

#include <fstream>
#include <string>

namespace terrace {

// Returns whether a process, given by its number, is gone, or is a zombie that has not been reaped.
inline bool has_ended(const std::string& process) {
  std::ifstream file("/proc/" + process + "/stat");
  std::string facts;
  std::getline(file, facts);
  const std::size_t name_end = facts.rfind(')');  // the state follows
  return name_end == std::string::npos || facts.substr(name_end + 2, 1) == "Z";
}

}  // namespace terrace
