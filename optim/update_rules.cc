#include "optim/update_rules.h"

#include <array>

#include "optim/rules/rules.h"

namespace terrace {
namespace {

template <typename... Rules>
std::array<const UpdateRule*, sizeof...(Rules)> all_of(RuleList<Rules...> /*list*/) {
  return {&update_rule<Rules>()...};
}

}  // namespace

std::span<const UpdateRule* const> update_rules() {
  static const auto kRules = all_of(ProgramRules());
  return kRules;
}

std::span<const UpdateRule* const> update_rules_for_trainers() {
  static const auto kRules = all_of(AllRules());
  return kRules;
}

const UpdateRule* find_update_rule(std::string_view name) {
  for (const UpdateRule* rule : update_rules()) {
    if (rule->name == name) return rule;
  }
  return nullptr;
}

}  // namespace terrace
