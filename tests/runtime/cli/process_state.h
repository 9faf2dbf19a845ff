#pragma once

#include <fstream>
#include <string>

namespace terrace {

// Whether a process, by its number, is gone, or a zombie that nobody has reaped yet.
inline bool has_ended(const std::string& process) {
  std::ifstream file("/proc/" + process + "/stat");
  std::string facts;
  std::getline(file, facts);
  const std::size_t name_end = facts.rfind(')');  // the state follows
  return name_end == std::string::npos || facts.substr(name_end + 2, 1) == "Z";
}

}  // namespace terrace
