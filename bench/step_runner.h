#pragma once

#include <array>
#include <cstdint>
#include <string_view>
#include <vector>

#include "bench/bench.h"
#include "runtime/engine/model_runtime.h"

namespace terrace {

// Whole steps of an engine, on tokens that were made up.
class StepRunner {
 public:
  // Plans, makes and fills the engine. Throws as the engine does.
  StepRunner(const ModelRuntimeOptions& options, Log& log);

  // Runs `steps` steps, three or more, and the updates that the last one leaves. Returns the
  // seconds from the first compute op of one step to the first of the next, as the mean of the
  // timed steps, which are the steps in the steady state: the first step has no updates under it,
  // and the last has no next one.
  double step_seconds(int steps);

  const StepModel& model() const { return plan_.model; }
  const Program& program() const { return engine_.program(); }
  // The engine's own bodies, also where others run in their place.
  const OpBodies& bodies() const { return engine_.bodies(); }
  int update_threads() const { return engine_.update_threads(); }
  // The seconds of all processors, for a step with its updates.
  const Samples& processor_seconds() const { return processor_s_; }
  // The seconds that the compute lane was at work in a timed step, once for each step_seconds().
  const Samples& compute_seconds() const { return compute_s_; }
  // Drops what was measured so far.
  void forget();
  // The busy seconds of the lanes for one step, between the starts of the timed steps, whatever
  // step an op belongs to.
  const std::array<double, kLaneCount>& busy_s() const { return busy_s_; }
  // The times when each op of program() ran in the last timed step. The updates belong to the step
  // before.
  const std::vector<OpTime>& op_times() const { return last_.times; }

 private:
  void begin();
  void keep_times(const RunReport& report);

  const ModelRuntimeOptions options_;
  const TierPlan plan_;
  ModelRuntime engine_;
  std::vector<std::int32_t> tokens_;
  std::int64_t step_ = 0;
  Samples processor_s_, compute_s_;
  std::array<std::vector<OpTime>, kLaneCount> lane_times_;  // of all steps of a step_seconds()
  std::array<double, kLaneCount> busy_s_{};
  RunReport last_;
};

// Adds "<prefix>_compute" and so on: the part of a step in which each lane was busy.
void add_busy(std::vector<BenchResult::Detail>& details, std::string_view prefix,
              const std::array<double, kLaneCount>& busy_s, double step_s);

// Returns tokens and targets of `micro_batches` micro-batches, as a step takes them.
std::vector<std::int32_t> made_up_tokens(std::int64_t rows, std::int32_t micro_batches);

}  // namespace terrace
