#pragma once

#include <span>
#include <string_view>

#include "optim/update_rule.h"

namespace terrace {

// The rules that --optimizer takes, the one that is taken where nothing is said first.
std::span<const UpdateRule* const> update_rules();
// One of these. Null where there is none of this name.
const UpdateRule* find_update_rule(std::string_view name);
// These, and the rules that do what another trainer's optimizer does.
std::span<const UpdateRule* const> update_rules_for_trainers();

}  // namespace terrace
