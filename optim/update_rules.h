#pragma once

#include <span>
#include <string_view>

#include "optim/update_rule.h"

namespace terrace {

// Returns the rules that --optimizer takes, the default first.
std::span<const UpdateRule* const> update_rules();
// Returns one of these rules, or null if none has this name.
const UpdateRule* find_update_rule(std::string_view name);
// Returns these rules, and the rules that do what another trainer's optimizer does.
std::span<const UpdateRule* const> update_rules_for_trainers();

}  // namespace terrace
