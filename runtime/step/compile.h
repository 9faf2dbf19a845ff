#pragma once

#include <array>

#include "runtime/step/place.h"
#include "runtime/step/step_model.h"
#include "runtime/step/step_policy.h"

namespace terrace {

// All passes: schedule, recompute, offload with the fetch plan, place, edges. Room that the budgets
// leave is used for keeping and prefetching; the program may still exceed them, and then tells by
// how much. Same inputs, same program. `base`: see ArenaPacking.
Program compile_step(const StepModel& model, const StepPolicy& policy, const TierBudgets& budgets,
                     const Program* base = nullptr);

// The same with nothing kept or prefetched in tiers with a budget, and without edges: what
// compile_step() comes to where nothing fits, in one pass.
Program compile_least(const StepModel& model, const StepPolicy& policy, const TierBudgets& budgets);

// Whether the tier's budget suffices, with nothing kept or prefetched that need not be, or with all
// that has room. Much quicker than compile_step(), for whoever asks of many policies.
bool can_fit(const StepModel& model, const StepPolicy& policy, const TierBudgets& budgets,
             Tier tier);

// Returns the bytes of each tier that are live at once with nothing kept or prefetched that need
// not be: no program of the policy is packed lower. Quicker still, as nothing is packed.
std::array<std::size_t, kTierCount> least_live_bytes(const StepModel& model,
                                                     const StepPolicy& policy);

}  // namespace terrace
