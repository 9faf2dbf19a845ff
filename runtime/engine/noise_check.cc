#include "runtime/engine/noise_check.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <string_view>

#include "base/error.h"

namespace terrace {
namespace {

// Returns how many units besides the owner write the gradient of a group.
int further_writers(const StepModel& model, std::int32_t group) {
  int writers = 0;
  for (std::int32_t u = 0; u <= model.last_unit(); ++u) {
    const UnitModel& unit = model.units.at(static_cast<std::size_t>(u));
    const auto found = std::ranges::find(unit.groups, group);
    if (u == model.owner(group) || found == unit.groups.end()) continue;
    const auto number = static_cast<std::int32_t>(found - unit.groups.begin());
    writers += UnitModel::writes_gradient(unit.backward, number) ? 1 : 0;
  }
  return writers;
}

// Refuses a step of one data-parallel rank in which the gradient of the first micro-batch is not
// known by itself.
void check_first_micro_batch(const StepModel& model, const TierRuntimeOptions& options) {
  const PlacementRequest& placement = options.placement;
  const OptionNames name = placement.name_of_option;
  const auto refuse = [&](std::string_view why, std::string_view remedy) {
    throw ConfigError(
        fmt::format("{}: {}", name(Option::kGradientNoise), why),
        fmt::format("{}train with several data-parallel ranks, or leave it out", remedy));
  };
  if (placement.micro_batches == 1) {
    refuse(
        "a step has one micro-batch on one data-parallel rank, and the gradient noise scale "
        "follows from the gradients of two sizes of batch",
        fmt::format("set {} to 2 or more, ", name(Option::kMicroBatches)));
  }
  if (model.tensor.ranks > 1) {
    refuse(
        "tensor-parallel ranks add their shares of a gradient only at the end of a step, so "
        "they do not know the first micro-batch's",
        "");
  }
  for (std::int32_t g = 0; g < model.group_count(); ++g) {
    // A head may share the embedding's parameters. If more units write a gradient, and each of them
    // goes through all micro-batches, it is never the gradient of the first micro-batch alone.
    const int allowed = model.joins_micro_batches(model.owner(g)) ? 1 : 0;
    if (further_writers(model, g) > allowed) {
      refuse("several units share parameters, so the first micro-batch's gradient is not known",
             "");
    }
    if (!model.passes_gradient(g)) continue;
    refuse(
        "two pipeline stages share parameters, such as a tied embedding, and add their "
        "gradients only at the end of a step, so they do not know the first micro-batch's",
        "");
  }
}

}  // namespace

void check_noise(const StepModel& model, const TierRuntimeOptions& options) {
  if (!model.measures_noise) return;
  const std::string_view noise = options.placement.name_of_option(Option::kGradientNoise);
  if (options.placement.reduces_micro_batches) {
    throw ConfigError(fmt::format("{}: ranks add the gradient of every micro-batch at once, so no "
                                  "rank knows the gradient of its own samples",
                                  noise),
                      "reduce gradients once a step, or leave it out");
  }
  if (!model.tasks.empty()) {
    throw ConfigError(fmt::format("{} is not built for an order of tasks from outside", noise),
                      "leave it out");
  }
  if (model.zero.ranks == 1) check_first_micro_batch(model, options);
}

}  // namespace terrace
