#include "runtime/plan/update_split.h"

#include <algorithm>
#include <array>
#include <vector>

#include "base/check.h"
#include "runtime/step/simulate.h"

namespace terrace {
namespace {

using LaneSeconds = std::array<double, kLaneCount>;

// Returns the time that each lane works, by group; the last entry is of ops without a group.
std::vector<LaneSeconds> seconds_by_group(const Program& program, const MachineProfile& machine) {
  std::vector<LaneSeconds> seconds(static_cast<std::size_t>(program.groups) + 1);
  const std::vector<double> alone_s = seconds_alone(program, machine);
  for (std::size_t i = 0; i < program.ops.size(); ++i) {
    const Op& op = program.ops[i];
    const std::int32_t row = op.group < 0 ? program.groups : op.group;
    seconds.at(static_cast<std::size_t>(row)).at(static_cast<std::size_t>(op.lane)) +=
        program.times_of(i) * alone_s[i];
  }
  return seconds;
}

bool can_stream(const StepModel& model, const StepPolicy& policy, std::int32_t group) {
  return model.owns(group) && model.group_trains(group) &&
         policy.homes.at(static_cast<std::size_t>(group)).optimizer != Tier::kDevice;
}

}  // namespace

void stream_updates(const StepModel& model, StepPolicy& policy, double share) {
  TERRACE_CHECK(!policy.unified && share >= 0 && share <= 1);
  double passed = 0;
  double streamed = 0;
  for (std::int32_t g = 0; g < model.group_count(); ++g) {
    const auto index = static_cast<std::size_t>(g);
    bool& streams = policy.homes.at(index).streams_update;
    streams = false;
    if (!can_stream(model, policy, g)) continue;
    const auto elements = static_cast<double>(model.groups.at(index).trained_elements());
    passed += elements;
    streams = share * passed - streamed >= elements / 2;
    if (streams) streamed += elements;
  }
}

double balanced_share(const StepModel& model, const StepPolicy& policy, const Program& none,
                      const Program& all, const MachineProfile& machine) {
  const std::vector<LaneSeconds> on_host = seconds_by_group(none, machine);
  const std::vector<LaneSeconds> on_device = seconds_by_group(all, machine);
  const auto slowest_lane_s = [&](double share) {
    StepPolicy tried = policy;
    stream_updates(model, tried, share);
    LaneSeconds sum = on_host.back();
    for (std::size_t g = 0; g < tried.homes.size(); ++g) {
      const LaneSeconds& group = tried.homes[g].streams_update ? on_device[g] : on_host[g];
      for (std::size_t l = 0; l < kLaneCount; ++l) sum[l] += group[l];
    }
    return std::ranges::max(sum);
  };
  std::int32_t groups = 0;
  for (std::int32_t g = 0; g < model.group_count(); ++g) {
    groups += can_stream(model, policy, g) ? 1 : 0;
  }
  double best = 0;
  double best_s = slowest_lane_s(0);
  for (std::int32_t n = 1; n <= groups; ++n) {
    const double share = static_cast<double>(n) / groups;
    const double seconds = slowest_lane_s(share);
    if (seconds >= best_s) continue;
    best_s = seconds;
    best = share;
  }
  return best;
}

MachineProfile gpu_machine(std::int32_t update_threads, double link_bytes_per_s) {
  constexpr double kUnknownLinkBytesPerS = 25e9;
  constexpr double kBytesPerSOfThread = 4e9;
  const double link = link_bytes_per_s > 0 ? link_bytes_per_s : kUnknownLinkBytesPerS;
  MachineProfile machine;
  machine.compute_bytes_per_s = 1e12;
  machine.op_overhead_s = 5e-6;
  machine.upload_bytes_per_s = machine.download_bytes_per_s = link;
  machine.links.fill({.bytes_per_s = link});
  machine.update_bytes_per_s = kBytesPerSOfThread * update_threads;
  // There are as many threads as the memory can feed beside the links (memory/host/thread_plan.h).
  machine.memory_bytes_per_s = machine.update_bytes_per_s + 2 * link;
  machine.compute_cores = 0;
  machine.update_cores = update_threads;
  machine.cores = 2.0 * update_threads;
  return machine;
}

}  // namespace terrace
