#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "runtime/engine/model_runtime.h"
#include "runtime/step/machine_profile.h"
#include "runtime/train/first_steps.h"
#include "runtime/train/rank_group.h"
#include "runtime/train/train_console.h"
#include "runtime/train/train_setup.h"

namespace terrace {

// The simulator's prediction of the time of a rank's step on this machine. The speed of products is
// measured for a moment, and the speed of drives is taken from earlier measurements. All other
// rates are the simulator's assumptions about a small computer (runtime/step/machine_profile.h).
// Expect the prediction to be right within a factor of three.
struct StepPrediction {
  double step_s = 0;
  Lane limit = Lane::kCompute;  // the busiest lane
  double flops_per_s = 0;
  DriveRates drive;  // of all drives together
  bool drive_is_remembered = false;
};

// Predicts a step of an engine on the CPU device. For the measurement, the engine's number of
// threads compute for some hundredths of a second.
StepPrediction predict_step(const ModelRuntimeOptions& options, const TierPlan& plan);

// Returns one line for people about a step of `tokens` tokens, counted over all ranks.
std::string describe_prediction(const StepPrediction& prediction, const Program& program,
                                std::int64_t tokens);

// Predicts a step and prints the prediction. Returns the step's seconds.
double tell_prediction(const ModelRuntimeOptions& options, const TierPlan& plan,
                       std::int64_t tokens, TrainConsole& console);

// The input for planned_step(). `before_bytes`: the memory of the process that was resident before
// the engine was made; `ranks_in_process`: the number of ranks that are its threads. planned_step()
// returns the memory that a run plans to take, to be compared with the memory that it takes: all
// ranks call it, and each gets the largest values.
struct PlannedMemory {
  const TierPlan& plan;
  const MachineShare& machine;
  std::size_t before_bytes = 0;
  std::int32_t ranks_in_process = 1;
};
PlannedStep planned_step(const PlannedMemory& memory, std::optional<double> step_s,
                         const RankGroup& ranks);

}  // namespace terrace
