#pragma once

#include <cstdint>
#include <vector>

#include "memory/state_class.h"
#include "memory/tier.h"
#include "parallel/pipeline_schedule.h"

// Every choice that the passes are given; no pass chooses on its own.
namespace terrace {

enum class MicroBatchOrder : std::uint8_t { kMicroBatchMajor, kLayerMajor };

// Where the states of one unit live between uses.
struct UnitHomes {
  // Of gradients the finished ones; of activations those of this unit, between forward and
  // backward.
  ByStateClass<Tier> tiers = on_host();
  bool recompute = false;  // its saved activations are not kept at all
  // The user named the tier: also what is needed again soon goes there and comes back.
  bool activations_named = false;
  // Optimizer state that is at home on the host or NVMe passes through device memory to be updated
  // there. Without effect where it is at home on the device, and in unified mode.
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
  // Gradients are reduced over ranks after every micro-batch, and this rank's parts of them summed,
  // where gradients are divided: other bits, and no whole sums. Not layer-major.
  bool reduces_micro_batches = false;
  bool has_backward = true;  // false: evaluation, forward and loss alone
  // Updates are then deferred: they run under the next step's forward. Otherwise, where no step can
  // be clipped or skipped, each runs under the backward as soon as its gradient is there; but for
  // the first units', whose gradients are the last of the step, and whose parameters are the first
  // that the next one needs: those are best updated in the place where the forward finds them. How
  // many they are also divides the drive's work between the forward and the backward.
  bool updates_wait_for_norm = true;
  std::int32_t first_units = 3;  // 1 or more: the embedding's gradient is the step's last
  // The embedding's gradient, the step's last and the next one's first to be used, stays in memory
  // even if its home is a drive.
  bool keeps_first_gradient = false;
  PipelineSchedule pipeline_schedule = PipelineSchedule::k1F1B;  // where there are stages
  std::int32_t lookahead = 3;    // units whose loads may be issued ahead
  std::vector<UnitHomes> homes;  // one per unit

  bool defers_update(std::int32_t unit) const {
    return updates_wait_for_norm || unit < first_units;
  }
  // A gradient that is used up at once is not worth the way to a drive and back.
  Tier gradient_home(std::int32_t unit) const {
    const Tier named = homes.at(static_cast<std::size_t>(unit))[StateClass::kGradients];
    const bool stays = !defers_update(unit) || (unit == 0 && keeps_first_gradient);
    return named == Tier::kNvme && stays ? Tier::kHost : named;
  }
  // Where the unit's update runs: on the device, or on the host.
  Tier update_tier(std::int32_t unit) const {
    const UnitHomes& of_unit = homes.at(static_cast<std::size_t>(unit));
    const bool on_device =
        of_unit[StateClass::kOptimizer] == Tier::kDevice || of_unit.streams_update;
    return on_device ? compute_tier() : Tier::kHost;
  }
  // Whether its optimizer state passes through device memory for that.
  bool streams_update(std::int32_t unit) const {
    const UnitHomes& of_unit = homes.at(static_cast<std::size_t>(unit));
    return !unified && of_unit.streams_update && of_unit[StateClass::kOptimizer] != Tier::kDevice;
  }
  friend bool operator==(const StepPolicy&, const StepPolicy&) = default;
  Tier compute_tier() const { return unified ? Tier::kHost : Tier::kDevice; }
};

}  // namespace terrace
