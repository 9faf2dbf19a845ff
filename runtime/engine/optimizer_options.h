#pragma once

#include <cstdint>
#include <vector>

#include "optim/loss_scale.h"
#include "optim/state_format.h"
#include "optim/update_rules.h"

namespace terrace {

// An update rule that some groups of parameters have in place of the first.
struct FurtherRule {
  const UpdateRule* rule = update_rules().front();
  RuleOptions numbers = standard_options(*rule);
  SlotForm slot_form = SlotForm::kFp32;
};

struct OptimizerOptions {
  const UpdateRule* rule = update_rules().front();
  RuleOptions numbers = standard_options(*rule);  // weight_decay: of decayed_elements
  double max_grad_norm = 1.0;                     // 0: no clipping
  // Whether steps may change nothing. Two kinds of steps do so then: a step that is abandoned
  // before it is finished, and a step whose gradients are not finite, which says so in its result
  // instead of failing. Only one step may then be unfinished at a time. Needs max_grad_norm,
  // because updates that do not wait for the norm cannot be skipped.
  bool can_skip_steps = false;
  bool splits_bf16_masters = true;  // false: with bf16 compute, the masters are whole
  SlotForm slot_form = SlotForm::kFp32;
  // The rules that ParameterGroup::rule numbers from 1 on. All rules have the same learning rate.
  std::vector<FurtherRule> further_rules = {};
  LossScaleOptions loss_scale;  // of fp16 compute
  std::uint64_t seed = 1234;    // of the random numbers that round slots

  // Returns a rule by the number of ParameterGroup::rule. Number 0 is the first rule.
  FurtherRule rule_of(std::int32_t number) const {
    return number == 0 ? FurtherRule{rule, numbers, slot_form}
                       : further_rules.at(static_cast<std::size_t>(number - 1));
  }
};

}  // namespace terrace
