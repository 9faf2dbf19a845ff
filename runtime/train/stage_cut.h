#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/function_ref.h"
#include "base/log.h"
#include "parallel/mesh.h"
#include "runtime/engine/tier_plan.h"
#include "runtime/train/step_observer.h"
#include "runtime/train/train_console.h"
#include "runtime/train/trainer.h"

// --stage-speeds auto: the first steps of a run measure how fast each pipeline stage computes. Then
// the run saves a checkpoint, and goes on from it in the same process, with the model cut by these
// speeds. docs/pipeline.md explains it.
namespace terrace {

// The work that a rank's stage has in one step, in operations, and the time that the rank took for
// it: for its updates and movements too, where these made its compute lane stand still.
struct StageWork {
  double flops = 0;
  std::int64_t steps = 0;
  double work_s = 0;  // in all these steps; without the time in which it waited for other ranks
};

// Returns the work of a rank in the steps that its observer has seen, without the first.
StageWork work_of_stage(const TierPlan& plan, const StepObserver& observer);

// A part of a run: up to its end, or up to the step at which the model is cut anew.
struct TrainedPart {
  TrainOutcome outcome = TrainOutcome::kDone;
  std::string run_dir;
  std::int64_t done_steps = 0;
  StageWork work;  // of this rank
};

// Trains with a command: in one part, or, where the stages are to be measured, in two. All ranks
// call it. Throws ConfigError if there are no stages to measure.
TrainOutcome train_in_parts(const TrainCommand& command, Communicator* world, TrainConsole& console,
                            Log& log, FunctionRef<TrainedPart(const TrainCommand&)> train_part);

// Returns the speeds of the stages relative to the fastest one, in thousandths. `work`: of all
// ranks by rank. The slowest rank of a stage decides. Returns nothing if some rank has not
// worked.
std::vector<double> measured_speeds(std::span<const StageWork> work, const MeshShape& shape);

}  // namespace terrace
