#pragma once

#include "runtime/model/option_names.h"

namespace terrace {

// Returns the flag of an option of `terrace train`. It serves as the OptionNames of the command
// line.
std::string_view flag_of_option(Option option);

}  // namespace terrace
