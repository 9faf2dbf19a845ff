#pragma once

#include "runtime/config/plan_sweep.h"
#include "runtime/train/train_console.h"

namespace terrace {

// Runs `terrace plan --sweep`: plans every combination and prints a table, CSV or a document. A
// combination that does not fit, or that the model or the machine rules out, has the reason in its
// row. After ten minutes nothing more is planned, and the rows that are left say so. Throws
// ConfigError for values that no flag takes.
void sweep_plans(const PlanSweep& sweep, TrainConsole& console);

}  // namespace terrace
