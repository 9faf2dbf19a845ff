#include "runtime/cli/choice_flags.h"

namespace terrace {

ChoiceRule read_choice(const ChoiceFlags& flags, const ChoiceRule& usual) {
  ChoiceRule rule = usual;
  if (flags.temperature) rule.temperature = flags.temperature->number(0);
  if (flags.top_k) rule.top_k = flags.top_k->integer(0);
  if (flags.top_p) {
    rule.top_p = flags.top_p->positive_number();
    if (rule.top_p > 1) flags.top_p->refuse("too large", "give at most 1");
  }
  return rule;
}

}  // namespace terrace
