#pragma once

#include <cstdint>
#include <exception>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

namespace terrace {

enum class CheckStatus : std::uint8_t {
  kOk,
  kWarn,  // training works, and would work better otherwise; or it could not be looked at
  kFail,  // training is refused like this
};

// One thing that training depends on, as this process finds it.
struct MachineCheck {
  std::string name;  // "io_uring"
  CheckStatus status = CheckStatus::kOk;
  std::string value;           // what was found
  std::string remedy;          // how to get more; empty where all is well
  std::string directory = {};  // the one that it is about; empty: the machine
};

// What was found where an error kept one from looking.
MachineCheck stopped_by(const std::exception& error, std::string_view name);
// What `look` finds. What keeps it from looking is what is found then: the others go on.
MachineCheck checked(std::string_view name, const std::function<MachineCheck()>& look);

// Looks at processor, memory, limits and GPUs.
std::vector<MachineCheck> check_machine();

}  // namespace terrace
