#pragma once

#include <functional>
#include <string>
#include <vector>

#include "base/usage_error.h"
#include "tests/runtime/engine/plain_training.h"
#include "tests/runtime/temporary_directory.h"

// Trainings of the toy trainer over a TierRuntime.
namespace terrace {

inline constexpr std::int64_t kToySteps = 4;

inline double toy_learning_rate(std::int64_t step) { return 1e-2 / static_cast<double>(step); }

inline TierRuntimeOptions toy_options(std::int32_t micro_batches = 2) {
  TierRuntimeOptions options;
  options.placement.micro_batches = micro_batches;
  options.optimizer.numbers.weight_decay = 0.1F;
  options.optimizer.max_grad_norm = 0;
  options.chunk_elements = kBlockElements;  // a matrix is two chunks
  return options;
}

// Puts all state in a tier. With `unified` the compute works in host memory.
inline void put_all(TierRuntimeOptions& options, bool unified, Tier tier) {
  options.placement.unified = unified;
  options.placement.homes.fill(tier);
  options.placement.has_nvme = tier == Tier::kNvme;
}

struct ToyRun {
  std::vector<double> losses;
  std::vector<double> norms;
  std::vector<std::vector<float>> state;  // field by field of each unit

  friend bool operator==(const ToyRun&, const ToyRun&) = default;
};

inline TierStep toy_step(std::int64_t step, const std::vector<ToyInput>& inputs, int ranks = 1) {
  return {step, std::as_bytes(std::span(inputs)), PlainTraining::terms(inputs) * ranks,
          toy_learning_rate(step)};
}

// Trains the steps [first, last], beginning each next step before the last one is finished; then
// drains.
inline void train_toy(TierRuntime& runtime, const TierRuntimeOptions& options, std::int64_t first,
                      std::int64_t last, ToyRun& run) {
  const StepRanks& ranks = options.ranks;
  const auto begin = [&](std::int64_t step) {
    const std::vector<ToyInput> inputs =
        toy_inputs(step, options.placement.micro_batches, ranks.position.data);
    runtime.begin_step(toy_step(step, inputs, ranks.shape.data));
  };
  begin(first);
  for (std::int64_t step = first; step <= last; ++step) {
    if (step < last) begin(step + 1);
    const StepResult result = runtime.finish_step().result;
    run.losses.push_back(result.loss);
    run.norms.push_back(result.gradient_norm);
  }
  runtime.drain();
}

// Stands for elements that are at home on another rank.
inline constexpr float kNotHere = -12345.0F;

inline std::vector<std::vector<float>> read_toy(TierRuntime& runtime, const ComputeModel& model) {
  std::vector<std::vector<float>> state;
  for (std::size_t u = 0; u < model.units.size(); ++u) {
    for (const StateField field : kStateFields) {
      std::vector<float>& values =
          state.emplace_back(static_cast<std::size_t>(model.groups[u].padded_elements), kNotHere);
      for (std::int64_t at = 0; at < std::ssize(values); at += kBlockElements) {
        const auto block = std::span(values).subspan(static_cast<std::size_t>(at), kBlockElements);
        try {
          runtime.read_state(field, static_cast<std::int32_t>(u), at, block);
        } catch (const UsageError&) {  // another rank has it
        }
      }
    }
  }
  return state;
}

inline ToyRun run_toy(const ComputeModel& model, const TierRuntimeOptions& options,
                      const std::function<void(TierRuntime&)>& look = {}) {
  const TierPlan plan = plan_tiers(model, options);
  ToyTrainer trainer(model);
  SilentLog log;
  TierRuntime runtime(options, plan, trainer, log);
  fill_toy(runtime, model);
  ToyRun run;
  train_toy(runtime, options, 1, kToySteps, run);
  run.state = read_toy(runtime, model);
  if (look) look(runtime);
  return run;
}

}  // namespace terrace
