#pragma once

#include <string>
#include <vector>

namespace terrace::tidy {

// A place that breaks a rule of the house.
struct Violation {
  std::string path;  // from the root of the source tree
  int line = 1;      // from 1
  std::string what;  // a full clause: what is wrong and what is wanted

  bool operator==(const Violation&) const = default;
};

using Violations = std::vector<Violation>;

}  // namespace terrace::tidy
