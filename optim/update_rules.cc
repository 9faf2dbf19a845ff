#include "optim/update_rules.h"

#include <array>

#include "optim/adamw.h"

namespace terrace {

std::span<const UpdateRule* const> update_rules() {
  static const auto kRules = std::to_array<const UpdateRule*>({&adamw_rule()});
  return kRules;
}

const UpdateRule* find_update_rule(std::string_view name) {
  for (const UpdateRule* rule : update_rules()) {
    if (rule->name == name) return rule;
  }
  return nullptr;
}

}  // namespace terrace
