#pragma once

#include <string>
#include <string_view>

namespace terrace {

// Returns the text of a chat template that Terrace brings along, for base models that have none;
// null where there is none of that name.
const char* find_built_in_template(std::string_view name);

// Returns the names of all of them: "chatml, alpaca".
std::string built_in_template_names();

}  // namespace terrace
