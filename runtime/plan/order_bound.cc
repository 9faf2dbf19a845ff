#include "runtime/plan/order_bound.h"

#include <algorithm>
#include <array>

namespace terrace {

namespace {

constexpr auto kMoving = std::to_array({Lane::kUpload, Lane::kDownload, Lane::kRead, Lane::kWrite,
                                        Lane::kCollective, Lane::kIsland, Lane::kInterIsland});

// Returns whether a step of the unit's pass reads the group's parameters.
bool reads(const std::vector<UnitStep>& pass, const UnitModel& unit, std::int32_t group) {
  return std::ranges::any_of(pass, [&](const UnitStep& step) {
    return std::ranges::any_of(step.groups, [&](std::int32_t index) {
      return unit.groups[static_cast<std::size_t>(index)] == group;
    });
  });
}

}  // namespace

double moved_bytes(const Program& program) {
  double bytes = 0;
  for (const Lane lane : kMoving) bytes += lane_bytes(program, lane);
  return bytes;
}

double moved_by_repetition(const Program& program) {
  double bytes = 0;
  for (OpId op = program.repetition.begin; op < program.repetition.end; ++op) {
    const Op& repeated = program.ops[static_cast<std::size_t>(op)];
    if (std::ranges::find(kMoving, repeated.lane) != kMoving.end()) bytes += repeated.cost.bytes;
  }
  return bytes;
}

double least_moved_micro_batch_major(const StepModel& model, std::int32_t micro_batches,
                                     bool unified, std::size_t compute_bytes) {
  // The bytes of blocks that a forward uses once, and that a backward uses; and the elements of
  // blocks that have gradients.
  double in_forward = 0;
  double in_backward = 0;
  double trained = 0;
  const std::int32_t lowest = model.lowest_trained();
  for (std::int32_t g = 0; g < model.group_count(); ++g) {
    const std::int32_t u = model.owner(g);
    if (model.joins_micro_batches(u) || model.fuses_passes(u)) continue;
    const ParameterGroup& group = model.groups.at(static_cast<std::size_t>(g));
    const double bytes = static_cast<double>(model.group_bytes(g));
    if (reads(model.units[u].forward, model.units[u], g)) in_forward += bytes;
    if (u >= lowest && reads(model.units[u].backward, model.units[u], g)) in_backward += bytes;
    trained += static_cast<double>(group.trained_elements());
  }
  const double room = static_cast<double>(compute_bytes);
  const double gradients = trained * sizeof(float);
  // Where ranks have shards, a load moves at least the other ranks' shards.
  const double parts = model.zero.parts(StateClass::kParameters);
  const double moved_part = parts > 1 ? (parts - 1) / parts : 1;
  // The memory of processors keeps all sums. A device's memory keeps some, and the others cross the
  // link.
  const double for_backward = std::max(0.0, in_backward + (unified ? gradients : 0) - room);
  const double for_forward = std::max(0.0, in_forward + gradients - room);
  return moved_part * (micro_batches - 1) * (for_backward + for_forward);
}

}  // namespace terrace
