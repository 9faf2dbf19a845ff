#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "runtime/machine/machine.h"
#include "runtime/train/plan_choice.h"

namespace terrace {

// The things that a plan does because the memory of devices is short. Where it is not, some changes
// cannot help.
struct MemoryPressure {
  bool recomputes = false;
  bool moves_state = false;
};

// The choices that a search may make. Settings that the user has given stay as they are, except
// that micro-batch size and accumulation steps only say how large the global batch is.
class PlanChoices {
 public:
  // Throws ConfigError where the given settings contradict each other.
  PlanChoices(const PlanOptions& options, const Machine& machine);

  // Returns the samples of a step over all data-parallel ranks.
  std::int64_t global_samples() const { return global_samples_; }
  // Returns the outer level: every division of the ranks with every micro-batch size and ZeRO
  // stage. Everything else is as given, or left to the planner.
  std::vector<PlanChoice> divisions() const;
  // Returns whether the ZeRO stage of a choice is one that it may have.
  bool allows(const PlanChoice& choice) const;
  // Returns the inner level: the choices that differ from this one in one setting other than the
  // division of the ranks, as far as they may help a plan with this pressure on memory.
  std::vector<PlanChoice> neighbours(const PlanChoice& choice,
                                     const MemoryPressure& pressure) const;

 private:
  bool is_given(std::string_view flag) const;
  // A setting that is given as auto is as open as one that is not given.
  bool has_given_recompute() const;
  bool has_given_order() const;
  bool has_given_place() const;
  std::vector<std::int32_t> ranks_of_nodes() const;
  void add_meshes(const PlanChoice& of_nodes, std::vector<PlanChoice>& choices) const;
  // Returns the speeds by which layers are divided among the stages of a mesh.
  std::vector<double> stage_speeds_of(const PlanChoice& mesh) const;
  void add_batches(const PlanChoice& mesh, std::vector<PlanChoice>& choices) const;
  std::vector<std::int32_t> zero_stages(const PlanChoice& choice) const;
  void add_memory_neighbours(const PlanChoice& choice, std::vector<PlanChoice>& choices) const;
  void add_schedules(const PlanChoice& choice, std::vector<PlanChoice>& choices) const;
  void add_batch_neighbours(const PlanChoice& choice, std::vector<PlanChoice>& choices) const;

  const PlanOptions& options_;
  const Machine& machine_;
  std::int64_t global_samples_ = 1;
};

}  // namespace terrace
