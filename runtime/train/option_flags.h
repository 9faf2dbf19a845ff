#pragma once

#include "runtime/model/option_names.h"

namespace terrace {

// Names an option as `terrace train` takes it: the OptionNames of the command line.
std::string_view flag_of_option(Option option);

}  // namespace terrace
