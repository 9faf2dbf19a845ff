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

// What a step of a rank would take on this machine, by the simulator. Products are measured for a
// moment, drives are as fast as they are remembered to be; the rest is what the simulator assumes
// of a small computer (runtime/step/machine_profile.h). Expect it within a factor of three.
struct StepPrediction {
  double step_s = 0;
  Lane limit = Lane::kCompute;  // the busiest lane
  double flops_per_s = 0;
  DriveRates drive;  // of all drives together
  bool drive_is_remembered = false;
};

// Predicts a step of an engine on the CPU device. Its threads compute for some hundredths of a
// second.
StepPrediction predict_step(const ModelRuntimeOptions& options, const TierPlan& plan);

// One line for people, of a step of so many tokens, of all ranks.
std::string describe_prediction(const StepPrediction& prediction, const Program& program,
                                std::int64_t tokens);

// Predicts a step and says it. Returns its seconds.
double tell_prediction(const ModelRuntimeOptions& options, const TierPlan& plan,
                       std::int64_t tokens, TrainConsole& console);

// What a run plans to take of memory, to be compared with what it takes: all ranks call it, and
// each is told of the largest. `before_bytes`: that the process has had resident before the engine;
// `ranks_in_process`: ranks that are its threads.
struct PlannedMemory {
  const TierPlan& plan;
  const MachineShare& machine;
  std::size_t before_bytes = 0;
  std::int32_t ranks_in_process = 1;
};
PlannedStep planned_step(const PlannedMemory& memory, std::optional<double> step_s,
                         const RankGroup& ranks);

}  // namespace terrace
