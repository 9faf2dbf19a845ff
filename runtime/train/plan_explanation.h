#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "runtime/engine/tier_plan.h"

// The reasons of a plan, for people and for other programs.
namespace terrace {

// Says for one unit why each of its states lives where it lives, whether its activations are
// recomputed and why, where and when its update runs, and what held back its loads. `unit` is
// "embedding", "head" or the number of a block, counted from 0. Throws ConfigError, which names the
// flag, where there is no such unit in this pipeline stage.
std::string explain_unit(const TierPlan& plan, std::string_view unit);

// Returns the reasons of all units of this pipeline stage as JSON text: an object with "tiers" and
// "units" (docs/dry-run.md).
std::string reasons_json(const TierPlan& plan);

}  // namespace terrace
