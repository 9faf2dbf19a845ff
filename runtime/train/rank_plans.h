#pragma once

#include "runtime/engine/model_runtime.h"
#include "runtime/train/rank_group.h"
#include "runtime/train/train_console.h"

// The plans of the ranks of a run, which must not make ranks wait for each other forever.
namespace terrace {

// Plans this rank's step. Ranks with own limits (runtime/train/rank_limits.h) plan for these; the
// choices that the order of collectives depends on are made by the rank with the least memory, and
// the others take them. Throws what plan_model() throws. Where the plan of the rank with the least
// memory does not fit, the other ranks throw OutOfMemory, too. All ranks call it.
TierPlan plan_for_ranks(const ModelRuntimeOptions& options, const RankGroup& ranks);

// Throws ConfigError where the ranks of a stage have compiled programs that do not match
// (runtime/step/verify_ranks.h), and OutOfMemory where another stage does not fit. All ranks call
// it with their plans.
void check_plans_of_ranks(const ModelRuntimeOptions& options, const TierPlan& plan,
                          const RankGroup& ranks);

// Does both for the start of a run, while the console says that the step is planned.
TierPlan checked_plan(const ModelRuntimeOptions& options, const RankGroup& ranks,
                      TrainConsole& console);

}  // namespace terrace
