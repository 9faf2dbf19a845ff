#include "runtime/step/simulate_stages.h"

#include <algorithm>
#include <array>
#include <numeric>

#include "base/check.h"
#include "runtime/step/simulate.h"
#include "runtime/step/stage_graph.h"

namespace terrace {
namespace {

// The part of its program that a stage runs in each of the two steps.
constexpr std::array kPartOfStep = {Part::kPrologue, Part::kBody};

// Returns how long the nodes take.
std::vector<double> seconds_of_nodes(std::span<const Program* const> programs,
                                     std::span<const MachineProfile> profiles,
                                     const StageGraph& graph) {
  std::vector<double> seconds(graph.nodes(), 0);
  std::vector<std::vector<double>> alone;  // by stage and op
  for (std::size_t stage = 0; stage < programs.size(); ++stage) {
    alone.push_back(seconds_alone(*programs[stage], profiles[stage]));
  }
  graph.for_each_op([&](const OpOfStage& at) {
    const double alone_s =
        alone[static_cast<std::size_t>(at.stage)][static_cast<std::size_t>(at.op)];
    for (std::size_t step = 0; step < kPartOfStep.size(); ++step) {
      if (!graph.op_of(at).parts.contains(kPartOfStep[step])) continue;
      double& longest_s = seconds[graph.node(at, static_cast<int>(step))];
      longest_s = std::max(longest_s, alone_s);
    }
  });
  return seconds;
}

}  // namespace

StagesSimulation simulate_stages(std::span<const Program* const> programs,
                                 std::span<const MachineProfile> profiles) {
  TERRACE_CHECK_EQ(programs.size(), profiles.size());
  for (const MachineProfile& profile : profiles) check_profile(profile);
  const StageGraph graph(programs, static_cast<int>(kPartOfStep.size()));
  TERRACE_CHECK(graph.problems().empty());
  const std::vector<double> seconds = seconds_of_nodes(programs, profiles, graph);
  std::vector<double> start_s(graph.nodes(), 0);
  for (const std::size_t node : graph.order()) {
    const double end_s = start_s[node] + seconds[node];
    for (const std::size_t then : graph.next(node)) start_s[then] = std::max(start_s[then], end_s);
  }
  StagesSimulation result;
  result.compute_busy_s.assign(programs.size(), 0);
  std::array<double, kPartOfStep.size()> end_s = {};
  graph.for_each_op([&](const OpOfStage& at) {
    const Op& op = graph.op_of(at);
    for (std::size_t step = 0; step < kPartOfStep.size(); ++step) {
      if (!op.parts.contains(kPartOfStep[step])) continue;
      const std::size_t node = graph.node(at, static_cast<int>(step));
      end_s[step] = std::max(end_s[step], start_s[node] + seconds[node]);
      if (step == 0 || op.lane != Lane::kCompute) continue;
      result.compute_busy_s[static_cast<std::size_t>(at.stage)] += seconds[node];
    }
  });
  result.step_s = end_s[1] - end_s[0];
  const double busy_s =
      std::accumulate(result.compute_busy_s.begin(), result.compute_busy_s.end(), 0.0);
  const double all_s = result.step_s * static_cast<double>(programs.size());
  if (all_s > 0) result.bubble_share = std::max(0.0, 1 - busy_s / all_s);
  return result;
}

StagesSimulation simulate_stages(std::span<const Program* const> programs,
                                 const MachineProfile& profile) {
  return simulate_stages(programs, std::vector<MachineProfile>(programs.size(), profile));
}

}  // namespace terrace
