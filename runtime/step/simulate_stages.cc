#include "runtime/step/simulate_stages.h"

#include <algorithm>
#include <numeric>

#include "base/check.h"
#include "runtime/step/simulate.h"
#include "runtime/step/stage_graph.h"

namespace terrace {

StagesSimulation simulate_stages(std::span<const Program> programs, const MachineProfile& profile) {
  check_profile(profile);
  const std::vector<const Program*> stages = pointers_to(programs);
  const StageGraph graph(stages, 1);
  TERRACE_CHECK(graph.problems().empty());
  StagesSimulation result;
  result.compute_busy_s.assign(programs.size(), 0);
  std::vector<double> seconds(graph.nodes(), 0);
  std::vector<std::vector<double>> alone;  // by stage and op
  for (const Program& program : programs) alone.push_back(seconds_alone(program, profile));
  graph.for_each_op([&](const OpOfStage& at) {
    const Op& op = graph.op_of(at);
    if (!op.parts.contains(Part::kPrologue)) return;
    const auto stage = static_cast<std::size_t>(at.stage);
    const double alone_s = alone[stage][static_cast<std::size_t>(at.op)];
    double& longest_s = seconds[graph.node(at, 0)];
    longest_s = std::max(longest_s, alone_s);
    if (op.lane == Lane::kCompute) result.compute_busy_s[stage] += alone_s;
  });
  std::vector<double> start_s(graph.nodes(), 0);
  const std::vector<std::size_t> order = graph.order();
  for (const std::size_t node : order) {
    const double end_s = start_s[node] + seconds[node];
    result.makespan_s = std::max(result.makespan_s, end_s);
    for (const std::size_t then : graph.next(node)) start_s[then] = std::max(start_s[then], end_s);
  }
  const double busy_s =
      std::accumulate(result.compute_busy_s.begin(), result.compute_busy_s.end(), 0.0);
  const double all_s = result.makespan_s * static_cast<double>(programs.size());
  if (all_s > 0) result.bubble_share = 1 - busy_s / all_s;
  return result;
}

}  // namespace terrace
