#pragma once

#include "runtime/config/plan_options.h"
#include "runtime/machine/machine.h"
#include "runtime/train/train_console.h"

// `terrace plan`: what a training would need on machines that are not at hand, and how fast it
// would be there. docs/plan.md says how, and what the predictions are worth.
namespace terrace {

// Compiles the step of every pipeline stage, simulates it on nodes of `machine`, and prints what it
// found, or with --json one document. One rank of each stage stands for all of them. Throws
// ConfigError, and OutOfMemory where the step does not fit.
void plan_run(const PlanOptions& options, const Machine& machine, TrainConsole& console);

}  // namespace terrace
