#pragma once

#include <span>
#include <string_view>

namespace terrace {

// Returns the texts of the files in runtime/machine/shipped/. The build makes the source from them.
std::span<const std::string_view> shipped_machine_texts();

}  // namespace terrace
