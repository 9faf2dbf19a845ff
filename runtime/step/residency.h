#pragma once

#include "runtime/step/offload.h"
#include "runtime/step/place.h"

namespace terrace {

// Decides, with the whole step known in advance, what room in the tiers is used for: which
// parameters stay in the compute tier from one use to the next (the shortest gaps first, as
// Belady's rule has it), and how far ahead of its use each load is issued, at most policy.lookahead
// units. `budgets` are what may be live at once. Mandatory bytes that exceed them are not this
// function's to refuse.
// `draft`: of these stages (runtime/step/offload.h).
FetchPlan plan_fetches(const StepModel& model, const StepPolicy& policy,
                       const std::vector<Stage>& stages, const Draft& draft,
                       const TierBudgets& budgets);

}  // namespace terrace
