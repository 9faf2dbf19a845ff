#pragma once

#include <cstdint>
#include <string>

#include "runtime/train/checkpoint_room.h"
#include "runtime/train/rank_group.h"
#include "runtime/train/train_console.h"
#include "runtime/train/train_setup.h"

// `terrace train --dry-run`: says what a machine would need for a run.
namespace terrace {

struct DryRunSetting {
  const TrainOptions& options;
  const ModelRuntimeOptions&
      engine;  // with the budgets asked for, and this machine's for the others
  const MachineShare& machine;
  const RankGroup& ranks;
  std::string data;              // describe_data() and describe_documents()
  std::string documents;         // documents_json()
  SavingNeed saving;             // without errors of coded gradients, which the plan decides
  std::int64_t total_steps = 0;  // of the run
  std::int64_t tokens_per_step = 0;
};

// Compiles and verifies the step, and prints its ledger, or with --json the document of
// docs/dry-run.md. Where the step fits the budgets asked for, also says what a run on this machine
// would lack. Throws OutOfMemory where it does not fit them. All ranks call it.
void dry_run(const DryRunSetting& setting, TrainConsole& console);

}  // namespace terrace
