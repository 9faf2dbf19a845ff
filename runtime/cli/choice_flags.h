#pragma once

#include <optional>

#include "runtime/config/flag_value.h"
#include "runtime/train/choose_id.h"

namespace terrace {

// The flags that say how tokens are chosen; unset where they are not given.
struct ChoiceFlags {
  const std::optional<FlagValue>& temperature;
  const std::optional<FlagValue>& top_k;
  const std::optional<FlagValue>& top_p;
};

// Returns the rule that the flags give, and `usual` for those that are not given. Throws
// ConfigError.
ChoiceRule read_choice(const ChoiceFlags& flags, const ChoiceRule& usual = {});

}  // namespace terrace
