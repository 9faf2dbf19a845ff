#pragma once

#include <cstdint>
#include <vector>

#include "memory/host/worker_arena.h"
#include "runtime/engine/model_runtime.h"
#include "runtime/engine/training_state.h"
#include "runtime/model/unit_compute.h"

namespace terrace {

// A model so small that a step takes a fraction of a millisecond, and the results of its training
// when everything stays in memory and happens in order: the real engine's losses, norms and state.
class SimShape {
 public:
  static constexpr std::int64_t kSteps = 6;

  struct Step {
    StepResult result;
    std::uint64_t state = 0;  // hash of all state after the step
  };

  // Makes one of kShapes. The fifth and later shapes do not clip, so that most of their updates run
  // under the backward. In the last two most tensors are frozen.
  static constexpr int kShapes = 8;
  explicit SimShape(int number);

  const ModelRuntimeOptions& options() const { return options_; }
  const std::vector<UnitLayout>& layout() const { return layout_; }
  UnitCompute& compute() const { return compute_; }
  const StepModel& model() const { return model_; }
  WorkerArena& workers() const { return workers_; }

  const std::vector<std::int32_t>& tokens_of(std::int64_t step) const { return tokens_.at(step); }
  // Returns the input of a step without its tokens.
  RunInput input_of(std::int64_t step) const;
  // Returns the results after `step` steps; 0: the state as it was initialised.
  const Step& expected_after(std::int64_t step) const { return expected_.at(step); }

  static constexpr std::uint64_t kSeed = 1234;

 private:
  ModelRuntimeOptions options_;
  std::vector<UnitLayout> layout_;
  mutable UnitCompute compute_;
  StepModel model_;
  mutable WorkerArena workers_;
  std::vector<std::vector<std::int32_t>> tokens_;  // by step; the first is empty
  std::vector<Step> expected_;
};

std::uint64_t hash_of_state(TrainingState& state, const std::vector<UnitLayout>& layout);

}  // namespace terrace
