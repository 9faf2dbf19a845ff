#pragma once

#include <cstdint>
#include <vector>

#include "memory/state_class.h"
#include "memory/tier.h"
#include "parallel/pipeline_schedule.h"

// All choices that the passes are given. No pass makes a choice of its own.
namespace terrace {

enum class MicroBatchOrder : std::uint8_t { kMicroBatchMajor, kLayerMajor };

// The homes of one unit's states: where they live between uses.
struct UnitHomes {
  // Gradients: the finished ones. Activations: this unit's, between forward and backward.
  ByStateClass<Tier> tiers = on_host();
  bool recompute = false;  // its saved activations are not kept at all
  // The user named the tier of the activations. Then even activations that are needed again soon go
  // there and come back.
  bool activations_named = false;
  // Optimizer state that is at home on the host or NVMe passes through device memory and is updated
  // there. Has no effect if the state is at home on the device, or in unified mode.
  bool streams_update = false;

  Tier& operator[](StateClass state) { return tiers[state]; }
  Tier operator[](StateClass state) const { return tiers[state]; }
  friend bool operator==(const UnitHomes&, const UnitHomes&) = default;

 private:
  static ByStateClass<Tier> on_host() {
    ByStateClass<Tier> tiers;
    tiers.fill(Tier::kHost);
    return tiers;
  }
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
  // soon as its gradient is there. The first units are an exception. Their gradients are the last
  // of the step, and their parameters are the first that the next step needs, so their updates are
  // best made where the forward finds the parameters: they are deferred. How many units these are
  // also divides the drive's work between the forward and the backward.
  bool updates_wait_for_norm = true;
  std::int32_t first_units = 3;  // 1 or more: the embedding's gradient is the step's last
  // The embedding's gradient stays in memory even if its home is a drive. It is the step's last
  // gradient and the first that the next step uses.
  bool keeps_first_gradient = false;
  PipelineSchedule pipeline_schedule = PipelineSchedule::k1F1B;  // if there are pipeline stages
  std::int32_t lookahead = 3;                                    // prefetch distance, in units
  std::vector<UnitHomes> homes;                                  // one per unit

  bool defers_update(std::int32_t unit) const {
    return updates_wait_for_norm || unit < first_units;
  }
  // Returns where the unit's gradient lives. A gradient that is used up at once is not worth the
  // way to a drive and back.
  Tier gradient_home(std::int32_t unit) const {
    const Tier named = homes.at(static_cast<std::size_t>(unit))[StateClass::kGradients];
    const bool stays = !defers_update(unit) || (unit == 0 && keeps_first_gradient);
    return named == Tier::kNvme && stays ? Tier::kHost : named;
  }
  // Returns where the unit's update runs: on the device, or on the host.
  Tier update_tier(std::int32_t unit) const {
    const UnitHomes& of_unit = homes.at(static_cast<std::size_t>(unit));
    const bool on_device =
        of_unit[StateClass::kOptimizer] == Tier::kDevice || of_unit.streams_update;
    return on_device ? compute_tier() : Tier::kHost;
  }
  // Returns whether the unit's optimizer state passes through device memory to be updated there.
  bool streams_update(std::int32_t unit) const {
    const UnitHomes& of_unit = homes.at(static_cast<std::size_t>(unit));
    return !unified && of_unit.streams_update && of_unit[StateClass::kOptimizer] != Tier::kDevice;
  }
  friend bool operator==(const StepPolicy&, const StepPolicy&) = default;
  Tier compute_tier() const { return unified ? Tier::kHost : Tier::kDevice; }
};

}  // namespace terrace
