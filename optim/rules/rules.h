#pragma once

#include <array>
#include <cmath>
#include <cstdint>
#include <string_view>

#include "optim/rule_number.h"
#include "optim/update_rule.h"

// All rules. A rule is one text in this folder (docs/adding.md says what it has): a struct that is
// compiled several times, each time within a namespace that says what a Number is. Here it is one
// element: this is the definition.
namespace terrace {
namespace rules {

#include "optim/rules/adamw.inl"
#include "optim/rules/lion.inl"
#include "optim/rules/sgd.inl"
#include "optim/rules/torch_adamw.inl"

}  // namespace rules

template <typename... Rules>
struct RuleList {};
// The rules that --optimizer takes; the default comes first.
using ProgramRules = RuleList<rules::AdamW, rules::Lion, rules::Sgd>;
// These rules, and those that other trainers may name as well, which do what a trainer of theirs
// does.
using AllRules = RuleList<rules::AdamW, rules::Lion, rules::Sgd, rules::TorchAdamW>;

// Returns the rule as the runtime knows it. Defined by the rule's source in optim/cpu.
template <typename Rule>
const UpdateRule& update_rule();

// Calls body.operator()<Rule>() with the type that a rule was made of. Returns whether there is
// one.
template <typename Body, typename... Rules>
bool with_type_among(RuleList<Rules...> /*list*/, const UpdateRule& rule, const Body& body) {
  const auto visit = [&]<typename Rule>() {
    if (&rule != &update_rule<Rule>()) return false;
    body.template operator()<Rule>();
    return true;
  };
  return (visit.template operator()<Rules>() || ...);
}

template <typename Body>
bool with_type_of(const UpdateRule& rule, const Body& body) {
  return with_type_among(AllRules(), rule, body);
}

}  // namespace terrace
