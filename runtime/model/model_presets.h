#pragma once

#include <string_view>

namespace terrace {

// The config.json of a preset; empty for a name that is none.
std::string_view preset_json(std::string_view name);

}  // namespace terrace
