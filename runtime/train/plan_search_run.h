#pragma once

#include "runtime/config/plan_options.h"
#include "runtime/machine/machine.h"
#include "runtime/train/train_console.h"

namespace terrace {

// Runs `terrace plan --auto FILE`: searches the fastest settings, prints the best few beside each
// other, and writes the best to FILE, which `terrace train --config` takes. Throws as
// search_plans() does, and IoError.
void search_plan(const PlanOptions& options, const Machine& machine, TrainConsole& console);

}  // namespace terrace
