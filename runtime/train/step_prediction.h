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

// The simulator's prediction of the time of a rank's step on this machine. Ops and copies are
// measured for a moment, each alone, and the speed of drives is taken from earlier measurements.
// docs/plan.md says how good such predictions are.
struct StepPrediction {
  double step_s = 0;
  Lane limit = Lane::kCompute;    // the busiest lane
  double flops_per_s = 0;         // of products alone
  bool ops_are_measured = false;  // false: too slow or too large to time; products stand for them
  DriveRates drive;               // of all drives together
  bool drive_is_remembered = false;
  // Rates of links, measured with nothing else going on; 0 where they were not. On a GPU, uploads
  // and downloads are copies between the GPU and page-locked memory of the host. Collectives are
  // measured between data-parallel ranks or, if there is only one, between tensor-parallel ranks.
  double upload_bytes_per_s = 0;
  double download_bytes_per_s = 0;
  double collective_bytes_per_s = 0;
};

// The time that a start may take to predict its step.
inline constexpr double kPredictionSecondsMost = 3;

// The step to predict, and the share of the machine that its rank has.
struct PredictedRank {
  const ModelRuntimeOptions& options;
  const TierPlan& plan;
  const MachineShare& machine;
  const RankGroup& ranks;
};

// Predicts a step of an engine. All ranks call it, and measure at the same time: together they take
// as much of the machine as in a step. In a dry run only some of them are there, so the others'
// load is missing. No op is begun after `seconds_most`; most predictions take some tenths of a
// second. The memory of the device that ops run in is given back at the end.
//
// Returns none for several ranks with a GPU each, because nothing measures the links between GPUs
// before the engine exists, and where a GPU has no memory free. Throws DeviceError.
std::optional<StepPrediction> predict_step(const PredictedRank& rank, double seconds_most);

// Returns one line for people about a step of `tokens` tokens, counted over all ranks.
std::string describe_prediction(const StepPrediction& prediction, const Program& program,
                                std::int64_t tokens);

// Predicts a step as a start does, and prints the prediction, which it returns, if there is one.
std::optional<StepPrediction> tell_prediction(const PredictedRank& rank, std::int64_t tokens,
                                              TrainConsole& console);

// The memory of the process that was resident before the engine was made, and the most until then.
struct ResidentBefore {
  std::size_t bytes = 0;
  std::size_t peak_bytes = 0;
};

// Measures it. All ranks call it, and none goes on before all have measured.
ResidentBefore resident_before(const RankGroup& ranks);

// The input for planned_step(). `ranks_in_process`: the number of ranks that are its threads.
// planned_step() returns the memory that a run plans to take, to be compared with the memory that
// it takes: all ranks call it, and each gets the largest values.
struct PlannedMemory {
  const TierPlan& plan;
  const MachineShare& machine;
  ResidentBefore before;
  std::int32_t ranks_in_process = 1;
};
PlannedStep planned_step(const PlannedMemory& memory,
                         const std::optional<StepPrediction>& prediction, const RankGroup& ranks);

}  // namespace terrace
