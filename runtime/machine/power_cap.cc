#include "runtime/machine/power_cap.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "runtime/machine/rank_profile.h"

namespace terrace {

PowerCap power_cap_on(const Machine& machine, double watts) {
  const double full = machine.value(MachineFigure::kNodeWatts);
  if (watts < kLeastCapShare * full) {
    throw ConfigError(
        fmt::format("--power-cap {:.6g}: a node of {} takes {:.6g} W at full load, and below half "
                    "of that nothing predicts how fast it computes",
                    watts, machine.name, full),
        fmt::format("give at least {:.6g}, or plan with fewer nodes", kLeastCapShare * full));
  }
  return {.watts = std::min(watts, full),
          .full_watts = full,
          .clock_share = std::cbrt(std::min(watts, full) / full)};
}

Machine under_power_cap(const Machine& machine, const PowerCap& cap) {
  Machine capped = machine;
  std::optional<Figure>& products = capped.at(MachineFigure::kProductShare);
  if (!products) products = Figure{kUsualProductShare, {}, {}};
  products->value *= cap.clock_share;
  capped.at(MachineFigure::kNodeWatts)->value = cap.watts;
  return capped;
}

std::string describe_power_cap(const PowerCap& cap) {
  if (cap.watts >= cap.full_watts) {
    return fmt::format("power cap: none, since a node takes {:.6g} W at full load", cap.full_watts);
  }
  return fmt::format(
      "power cap: {:.6g} W of the {:.6g} W that a node takes at full load; products at {:.3g} of "
      "their rate, if power goes with the cube of the clock (docs/plan.md)",
      cap.watts, cap.full_watts, cap.clock_share);
}

}  // namespace terrace
