#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "memory/state_class.h"
#include "memory/tier.h"
#include "parallel/pipeline_schedule.h"
#include "runtime/model/unit_model.h"

// All choices that the passes are given. No pass makes a choice of its own.
namespace terrace {

enum class MicroBatchOrder : std::uint8_t { kMicroBatchMajor, kLayerMajor };

// The homes of a group's states: where its parameters, gradients and optimizer state live between
// uses.
struct GroupHomes {
  Tier parameters = Tier::kHost;
  Tier gradients = Tier::kHost;  // finished ones
  Tier optimizer = Tier::kHost;
  Tier errors = Tier::kHost;  // if gradients are coded with error feedback
  // Optimizer state that is at home on the host or NVMe passes through device memory and is updated
  // there. Has no effect if the state is at home on the device, or in unified mode.
  bool streams_update = false;
  // The gradient stays in memory even if its home is a drive.
  bool keeps_gradient = false;
  // The update runs under the next step's forward, even if updates do not wait for the norm.
  bool defers_update = false;

  friend bool operator==(const GroupHomes&, const GroupHomes&) = default;
};

// The fate of the activations that a unit's forward leaves for its backward.
struct UnitActivations {
  Tier home = Tier::kHost;
  bool recompute = false;  // they are not kept at all
  // The user named the home. Then even activations that are needed again soon go there and come
  // back.
  bool is_named = false;

  friend bool operator==(const UnitActivations&, const UnitActivations&) = default;
};

struct StepPolicy {
  std::int32_t micro_batches = 1;
  MicroBatchOrder order = MicroBatchOrder::kMicroBatchMajor;
  bool unified = true;  // device and host memory are one tier: the host's
  // Where gradients are divided over ranks, they are reduced after every micro-batch and each rank
  // sums its own parts. The results differ in their bits, and there are no whole sums. Not for
  // layer-major order.
  bool reduces_micro_batches = false;
  bool has_backward = true;  // false: evaluation, forward and loss alone
  // Whether updates wait for the norm. If so, all are deferred: they run under the next step's
  // forward. If not, no step can be clipped or skipped, and each update runs under the backward as
  // soon as its gradient is there, except where GroupHomes::defers_update says otherwise.
  bool updates_wait_for_norm = true;
  PipelineSchedule pipeline_schedule = PipelineSchedule::k1F1B;  // if there are pipeline stages
  std::int32_t lookahead = 3;                                    // prefetch distance, in visits
  std::vector<GroupHomes> homes;                                 // by group
  std::vector<UnitActivations> activations;                      // by unit

  // Returns where a state lives: of the group with this number, or activations of the unit.
  Tier home(StateClass state, std::int32_t number) const;
  // Sets it.
  void set_home(StateClass state, std::int32_t number, Tier tier);
  bool defers_update(std::int32_t group) const {
    return updates_wait_for_norm || homes.at(static_cast<std::size_t>(group)).defers_update;
  }
  // Returns where a group's gradient lives. A gradient that is used up at once is not worth the way
  // to a drive and back.
  Tier gradient_home(std::int32_t group) const;
  // Returns where a group's update runs: on the device, or on the host.
  Tier update_tier(std::int32_t group) const {
    const GroupHomes& of_group = homes.at(static_cast<std::size_t>(group));
    const bool on_device = of_group.optimizer == Tier::kDevice || of_group.streams_update;
    return on_device ? compute_tier() : Tier::kHost;
  }
  // Returns whether the group's optimizer state passes through device memory to be updated there.
  bool streams_update(std::int32_t group) const {
    const GroupHomes& of_group = homes.at(static_cast<std::size_t>(group));
    return !unified && of_group.streams_update && of_group.optimizer != Tier::kDevice;
  }
  Tier compute_tier() const { return unified ? Tier::kHost : Tier::kDevice; }
  friend bool operator==(const StepPolicy&, const StepPolicy&) = default;
};

// Defers the updates of the model's first units, and of no others. Their gradients are the last of
// the step, and their parameters are the first that the next step needs, so their updates are best
// made where the forward finds the parameters. How many units these are also divides the drive's
// work between the forward and the backward. At least 1: an embedding's gradient is the step's
// last.
void defer_first_updates(StepPolicy& policy, std::span<const ParameterGroup> groups,
                         std::int32_t units);
// Returns the number of units with which defer_first_updates() gives this policy.
std::int32_t deferred_units_of(const StepPolicy& policy, std::span<const ParameterGroup> groups);
// The usual number of these units.
inline constexpr std::int32_t kUsualDeferredUnits = 3;

}  // namespace terrace
