#include "runtime/machine/device_speeds.h"

#include <algorithm>
#include <cstdint>

namespace terrace {
namespace {

double speed_of_rank(const Machine& machine, const RankSetting& setting, std::int32_t rank) {
  return machine.device_speeds.at(static_cast<std::size_t>(rank % setting.ranks_on_node));
}

}  // namespace

std::vector<double> stage_speeds(const Machine& machine, const RankSetting& setting) {
  std::vector<double> speeds(static_cast<std::size_t>(setting.mesh.pipeline), 1);
  if (machine.device_speeds.empty()) return speeds;
  const std::int32_t ranks_of_stage = setting.mesh.data * setting.mesh.tensor;
  for (std::int32_t rank = 0; rank < setting.mesh.ranks(); ++rank) {
    double& slowest = speeds[static_cast<std::size_t>(rank / ranks_of_stage)];
    slowest = std::min(slowest, speed_of_rank(machine, setting, rank));
  }
  return speeds;
}

std::vector<double> unequal_stage_speeds(const Machine& machine, const RankSetting& setting) {
  std::vector<double> speeds = stage_speeds(machine, setting);
  if (std::ranges::count(speeds, speeds.front()) == setting.mesh.pipeline) speeds.clear();
  return speeds;
}

Machine at_speed(const Machine& machine, double speed) {
  Machine slowed = machine;
  for (const MachineFigure rate :
       {MachineFigure::kBf16FlopsPerS, MachineFigure::kFp16FlopsPerS, MachineFigure::kFp32FlopsPerS,
        MachineFigure::kDeviceMemoryBytesPerS}) {
    if (slowed.knows(rate)) slowed.at(rate)->value *= speed;
  }
  return slowed;
}

double peak_of_all_ranks(const Machine& machine, const RankSetting& setting) {
  double speeds = setting.mesh.ranks();
  if (!machine.device_speeds.empty()) {
    speeds = 0;
    for (std::int32_t rank = 0; rank < setting.mesh.ranks(); ++rank) {
      speeds += speed_of_rank(machine, setting, rank);
    }
  }
  return peak_flops_per_s(machine, setting) * speeds;
}

}  // namespace terrace
