#pragma once

#include <string_view>

namespace terrace {

// Returns the config.json of a preset; empty for a name that is not a preset's.
std::string_view preset_json(std::string_view name);

}  // namespace terrace
