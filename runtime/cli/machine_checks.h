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
  kWarn,  // training works, but could work better; or the check was not possible
  kFail,  // training is refused like this
};

// The state of one thing that training depends on, as this process finds it.
struct MachineCheck {
  std::string name;  // "io_uring"
  CheckStatus status = CheckStatus::kOk;
  std::string value;           // what was found
  std::string remedy;          // how to get more; empty where all is well
  std::string directory = {};  // the one checked; empty: the machine
};

// Returns the result of a check that an error has stopped.
MachineCheck stopped_by(const std::exception& error, std::string_view name);
// Returns the result of `look`. If `look` throws, the error becomes the result, so that the other
// checks go on.
MachineCheck checked(std::string_view name, const std::function<MachineCheck()>& look);

// Checks the processor, the memory, the limits and the GPUs.
std::vector<MachineCheck> check_machine();

}  // namespace terrace
