#pragma once

#include <span>
#include <string_view>

#include "optim/update_rule.h"

namespace terrace {

// All rules that there are, the one that is taken where nothing is said first.
std::span<const UpdateRule* const> update_rules();
// Null where there is none of this name.
const UpdateRule* find_update_rule(std::string_view name);

}  // namespace terrace
