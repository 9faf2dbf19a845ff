#pragma once

#include "runtime/plan/auto_placement.h"

namespace terrace {

// Throws OutOfMemory for a step of which no plan fits the budgets. The error has the ledger of the
// smallest program there is, and, a line each, the budgets that are enough and every other change
// that was tried and found to make the step fit, or noticeably smaller. In a pipeline all stages
// count.
[[noreturn]] void refuse_step(const StepModel& model, const PlacementRequest& request,
                              const TierBudgets& budgets);

}  // namespace terrace
